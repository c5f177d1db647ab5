"""Steps that hang on data, parameters that nothing reads, several models: traced whole, and said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="tracing needs the torch extra: pip install torch")
from torch import nn  # noqa: E402 - torch may be missing

from forerun import Advisor  # noqa: E402
from forerun.errors import RequestError  # noqa: E402
from forerun.workloads import trace  # noqa: E402
from forerun.workloads.trace import recorder, trace_module  # noqa: E402

DEPTH, WIDTH = 6, 16
LAYER_FLOPS = 2 * WIDTH * WIDTH


class Stack(nn.Module):
    """Layers of one width, run by a function of (layers, x)."""

    def __init__(self, run: Callable[..., Any], width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(DEPTH)])
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.layers, x)


def stops_at(condition: Callable[..., Any]) -> Callable[..., Any]:
    """Return a run of layers that leaves the loop where a condition of (before, after) holds."""

    def run(layers: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            before, x = x, layer(x)
            if condition(before, x):
                break
        return x

    return run


@pytest.mark.parametrize(
    "condition",
    [
        lambda before, x: x.mean() > 0.9,
        lambda before, x: x.mean() < 0.9,
        lambda before, x: x.mean().item() > 0.9,
        lambda before, x: x.mean().cpu() > 0.9,
        torch.allclose,
    ],
    ids=["above", "below", "item", "on the CPU", "fixed point"],
)
def test_an_early_exit_is_traced_to_the_end_and_its_line_is_named(condition: Any) -> None:
    workload = trace_module(Stack(stops_at(condition)), torch.zeros(3, WIDTH))
    assert workload.graph.forward_flops == DEPTH * LAYER_FLOPS
    said = " ".join(workload.notes)
    assert f"{__name__.rpartition('.')[2]}.py:" in said
    assert "depends on data" in said
    assert "no operation reads" not in said


def test_the_share_of_the_other_way_is_told() -> None:
    workload = trace_module(Stack(stops_at(lambda b, x: x.mean() > 0.9)), torch.zeros(3, WIDTH))
    (note,) = [n for n in workload.notes if "depends on data" in n]
    # One of six layers: a product forward, and backward only one of the weight, not of the input.
    assert "the other: 11.8 % of its FLOPs" in note


def test_layers_that_chance_drops_are_all_counted() -> None:
    def dropping(layers: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in layers[1:]:
            if torch.rand(1) < 0.3:
                continue
            x = layer(x)
        return layers[0](x)

    workload = trace_module(Stack(dropping), torch.zeros(3, WIDTH))
    assert workload.graph.forward_flops == DEPTH * LAYER_FLOPS


@pytest.mark.parametrize("width", [WIDTH, 4096], ids=["small", "too large to run for real"])
def test_a_check_that_stops_the_step_passes(width: int) -> None:
    def checked(layers: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
            if torch.isnan(x).any():
                raise ValueError("not a number")
            assert torch.isfinite(x).all()
        return x

    with torch.device("meta"):
        net = Stack(checked, width)
    workload = trace_module(net, torch.zeros(3, width))
    assert workload.graph.forward_flops == DEPTH * 2 * width**2
    assert not any("run for real" in note or "depends" in note for note in workload.notes)


def test_a_check_that_fails_either_way_is_told_in_its_own_words() -> None:
    def broken(layers: Any, x: torch.Tensor) -> torch.Tensor:
        x = layers[0](x)
        if x.mean() > 0:
            raise ValueError("above")
        raise ValueError("below")

    with pytest.raises(RequestError, match="the module raised ValueError"):
        trace_module(Stack(broken), torch.zeros(3, WIDTH))


def test_a_loop_whose_length_hangs_on_data_is_refused_with_its_line() -> None:
    def refining(layers: Any, x: torch.Tensor) -> torch.Tensor:
        while True:
            x = layers[0](x)
            if x.mean() > 0.9:
                return x

    line = refining.__code__.co_firstlineno + 3
    with pytest.raises(RequestError, match=rf"had not ended; it read .*branches\.py:{line}"):
        trace_module(Stack(refining), torch.zeros(3, WIDTH))


def test_a_loop_on_data_is_refused_after_some_hundred_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def settling(layers: Any, x: torch.Tensor) -> torch.Tensor:
        while x.norm() > 1e-3:
            x = layers[0](x) * 0.5
        return x

    monkeypatch.setattr(recorder, "MOST_OPERATIONS", 20_000)
    line = settling.__code__.co_firstlineno + 1
    with pytest.raises(RequestError, match=rf"dispatched 3,\d+ .*branches\.py:{line}"):
        trace_module(Stack(settling), torch.zeros(3, WIDTH))


@pytest.mark.parametrize("checked", [False, True])
def test_a_bounded_loop_may_read_a_value_more_often(checked: bool) -> None:
    def stepping(layers: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(recorder.MOST_READS + 10):
            if x[0, 0] > 0.5 and checked:
                raise ValueError("too large")
        return layers[0](x)

    workload = trace_module(Stack(stepping), torch.zeros(3, WIDTH).requires_grad_())
    assert workload.graph.forward_flops == LAYER_FLOPS


def test_a_step_that_is_long_for_real_is_run_for_real_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def through_numpy(layers: Any, x: torch.Tensor) -> torch.Tensor:
        x.detach().numpy()
        return stops_at(lambda before, x: x.mean() < 1e9)(layers, x)

    whole = trace_module(Stack(through_numpy), torch.zeros(3, WIDTH))
    assert whole.graph.forward_flops == DEPTH * LAYER_FLOPS
    monkeypatch.setattr(trace, "_MOST_REAL_FLOPS", 1.0)
    once = trace_module(Stack(through_numpy), torch.zeros(3, WIDTH))
    assert once.graph.forward_flops == LAYER_FLOPS
    said = " ".join(once.notes)
    assert "taken to be 1 or true" in said
    assert "no operation reads 1,360" in said


def test_parameters_that_no_operation_reads_are_named_with_their_share() -> None:
    workload = trace_module(Stack(lambda layers, x: layers[0](x)), torch.zeros(3, WIDTH))
    (note,) = workload.notes
    assert note.startswith("no operation reads 1,360 of 1,632 parameters (83.3 %): layers.1, ")
    assert "layers.4 and 1 more" in note


def test_frozen_parameters_that_nothing_reads_are_named_too() -> None:
    net = Stack(lambda layers, x: layers[0](x))
    net.layers[1].requires_grad_(False)
    assert any("1,360 of 1,632" in note for note in trace_module(net, torch.zeros(3, WIDTH)).notes)


@pytest.mark.parametrize(
    ("run", "covered", "remark"),
    [
        (stops_at(lambda b, x: False), "yes", "every operation is costed"),
        (stops_at(lambda b, x: True), "partly", "no operation reads 1,360 of 1,632"),
        (stops_at(lambda b, x: x.sum() > 0), "partly", "the step depends on data at"),
    ],
)
def test_support_calls_a_step_whole_only_where_it_is(run: Any, covered: str, remark: str) -> None:
    found = Advisor().support(trace_module(Stack(run), torch.zeros(3, WIDTH)))
    assert found.covered[0][:2] == ("step time", covered)
    assert remark in found.covered[0][2]


def test_a_prediction_warns_of_what_it_left_out() -> None:
    net = Stack(lambda layers, x: layers[0](x))
    answer = Advisor().predict(net, "1x1xa100-sxm-80gb", inputs=torch.zeros(3, WIDTH))
    assert any("no operation reads 1,360" in warning for warning in answer.warnings)


# ---- several models -------------------------------------------------------------------------------


def generator() -> Any:
    return nn.Linear(8, 32)


def discriminator() -> Any:
    return nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 1))


NOISE, IMAGES = torch.zeros(4, 8), torch.zeros(4, 32)


@pytest.mark.parametrize(
    ("modules", "inputs", "names"),
    [
        ([generator(), discriminator()], [NOISE, IMAGES], "0, 1"),
        ((generator(), discriminator()), (NOISE, {"input": IMAGES}), "0, 1"),
        ({"g": generator(), "d": discriminator()}, {"d": IMAGES, "g": NOISE}, "g, d"),
    ],
    ids=["list", "tuple", "dict"],
)
def test_several_modules_run_beside_one_another(modules: Any, inputs: Any, names: str) -> None:
    workload = trace_module(modules, inputs, optimizer="adam")
    alone = [trace_module(generator(), NOISE), trace_module(discriminator(), IMAGES)]
    assert workload.params == sum(one.params for one in alone)
    assert workload.graph.forward_flops == sum(one.graph.forward_flops for one in alone)
    assert workload.graph.backward_flops == sum(one.graph.backward_flops for one in alone)
    assert f"update by adam in each step of 2 modules ({names})" in workload.notes[0]


def test_an_advisor_takes_several_modules_too() -> None:
    answer = Advisor().predict(
        [generator(), discriminator()], "1x1xa100-sxm-80gb", inputs=[NOISE, IMAGES]
    )
    assert any("2 modules (0, 1), each on its own inputs" in note for note in answer.notes)


def test_a_discriminator_inside_a_module_is_assumed_to_be_trained_in_the_same_step() -> None:
    class Adversarial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.discriminator = generator(), discriminator()

        def forward(self, noise: torch.Tensor) -> torch.Tensor:
            return self.discriminator(self.generator(noise))

    (note,) = trace_module(Adversarial(), NOISE).notes
    assert "one update by adamw in each step, of discriminator and all else together" in note


@pytest.mark.parametrize(
    ("modules", "inputs", "found"),
    [
        ([generator(), discriminator()], None, r"2 modules \(0, 1\) and example inputs of none"),
        ([generator(), discriminator()], NOISE, "example inputs of none"),
        ([generator(), discriminator()], [NOISE], "example inputs of 0;"),
        ({"g": generator()}, {"d": IMAGES}, r"\(g\) and example inputs of d"),
        ([generator(), 3], [NOISE, IMAGES], "not a torch.nn.Module"),
        ([], [], "not a torch.nn.Module"),
        ([generator()], [IMAGES], "shapes cannot be multiplied"),
    ],
)
def test_inputs_of_several_modules_are_asked_for(modules: Any, inputs: Any, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        trace_module(modules, inputs)


def test_optimizers_that_are_no_name_are_refused() -> None:
    net = generator()
    optimizers: Any = [torch.optim.Adam(net.parameters())]
    with pytest.raises(RequestError, match="its optimizer is a list, not a name"):
        trace_module(net, NOISE, optimizer=optimizers)
