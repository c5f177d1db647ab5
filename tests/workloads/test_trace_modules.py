"""Any module is traced, or refused in words that say what to do."""

from __future__ import annotations

import copy
import threading
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="tracing needs the torch extra: pip install torch")

from torch import nn  # noqa: E402 - torch may be missing, and then nothing here is collected
from torch.nn import functional as F  # noqa: E402, N812 - torch's own name for it

from forerun.domain.graph import OpKind  # noqa: E402 - as above
from forerun.errors import RequestError, UnknownNameError  # noqa: E402 - as above
from forerun.search.batches import usual_batch  # noqa: E402 - as above
from forerun.workloads.trace import trace_module  # noqa: E402 - as above


class Applied(nn.Module):
    """A linear layer, and a function of its output."""

    def __init__(self, function: Any, width: int = 4, device: str = "cpu") -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, device=device)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def test_the_module_given_is_left_as_it_was() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.calls, self.last = nn.BatchNorm1d(4), 0, None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.last = self.norm(x)
            return self.last

    net = Counting().eval()
    before = copy.deepcopy(net.state_dict())
    trace_module(net, torch.ones(3, 4))
    assert (net.calls, net.last, net.training) == (0, None, False)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None and not p.is_meta for p in net.parameters())


def test_tracing_leaves_the_random_state_as_it_was() -> None:
    net = Applied(lambda x: float(x.detach().numpy().sum()) * F.dropout(x))
    before = torch.get_rng_state()
    trace_module(net, torch.ones(2, 4))
    assert torch.equal(before, torch.get_rng_state())


def test_a_model_of_70_billion_parameters_is_traced_in_seconds() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8192)
            self.up, self.down = nn.Linear(8192, 53_000), nn.Linear(53_000, 8192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    with torch.device("meta"):
        net = nn.Sequential(*[Layer() for _ in range(80)])
    start = time.perf_counter()
    workload = trace_module(net, torch.empty(1, 4096, 8192, device="meta"))
    assert time.perf_counter() - start < 10
    assert workload.params == pytest.approx(69.5e9, rel=0.01)


def test_control_flow_on_data_takes_a_plausible_branch_and_says_so() -> None:
    def branching(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0 and not torch.equal(x, x[:1]):
            x = x * int(x.abs().max().item())
        chosen = x[x > 0]
        rows = x[x.sum(1).nonzero()[:, 0]]
        return chosen.sum() + rows.sum() + torch.masked_select(x, x < 0).sum()

    workload = trace_module(Applied(branching), torch.randn(3, 4))
    assert workload.graph.unknown == ()
    assert any("taken to be 1 or true" in note for note in workload.notes)
    assert any("every element" in note for note in workload.notes)


def test_values_of_the_inputs_are_known_where_they_are_asked_for() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
            for _ in range(int(times.item())):
                x = self.linear(x)
            return x

    workload = trace_module(Counted(), (torch.zeros(2, 4), torch.tensor(5)))
    assert workload.graph.forward_flops == 5 * 2 * 16
    assert workload.notes == ()


def test_what_meta_cannot_run_is_run_for_real_where_the_module_is_small() -> None:
    def through_numpy(x: torch.Tensor) -> torch.Tensor:
        return x * float(x.detach().numpy().sum())

    workload = trace_module(Applied(through_numpy), torch.ones(2, 4))
    assert workload.graph.forward_flops == 32
    assert any("run for real on the CPU" in note for note in workload.notes)


def test_a_module_on_meta_with_data_dependence_is_given_weights() -> None:
    net = Applied(lambda x: x * float(x.detach().numpy().sum()), device="meta")
    assert trace_module(net, torch.ones(2, 4)).graph.params == 20


@torch.library.custom_op("forerun_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    """Twice its input; nobody knows it, and it has no meta kernel."""
    return x * 2


double.register_autograd(lambda ctx, grad: grad * 2, setup_context=lambda ctx, inputs, output: None)


def test_an_operation_that_nobody_knows_is_bounded_by_its_bytes_and_named() -> None:
    workload = trace_module(Applied(double), torch.ones(2, 4))
    assert workload.graph.unknown == ("forerun_tests::double",)
    (op,) = [op for op in workload.graph.ops if op.kind is OpKind.UNKNOWN]
    assert (op.reads, op.writes, op.flops) == (4, 4, 0)
    assert any("forerun_tests::double" in note for note in workload.notes)


def test_a_large_module_with_an_operation_that_meta_cannot_run_is_refused_by_its_name() -> None:
    net = Applied(double, width=8000, device="meta")
    with pytest.raises(RequestError, match="forerun_tests::double failed on the meta device"):
        trace_module(net, torch.ones(2, 8000))


def test_a_module_that_raises_is_told_in_its_own_words() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("the mask has 3 rows")

    with pytest.raises(RequestError, match=r"Applied.*ValueError: the mask has 3 rows"):
        trace_module(Applied(broken), torch.ones(2, 4))


def test_inputs_of_the_wrong_shape_are_told() -> None:
    with pytest.raises(RequestError, match="shapes cannot be multiplied"):
        trace_module(nn.Linear(4, 4), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("inputs", "found"),
    [(None, "no example inputs were given"), ((3,), "hold no tensor"), ((), "hold no tensor")],
)
def test_inputs_are_asked_for(inputs: Any, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        trace_module(nn.Linear(4, 4), inputs)


def test_a_lazy_module_is_refused() -> None:
    with pytest.raises(RequestError, match="lazy parameters"):
        trace_module(nn.LazyLinear(4), torch.ones(2, 4))


def test_a_module_without_anything_to_train_is_refused() -> None:
    with pytest.raises(RequestError, match="depends on a parameter"):
        trace_module(nn.ReLU(), torch.ones(2, 4))


def test_names_of_optimizer_and_precision_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="did you mean adam, adamw"):
        trace_module(nn.Linear(4, 4), torch.ones(2, 4), optimizer="adamx")
    with pytest.raises(UnknownNameError, match="precision 'fp12'"):
        trace_module(nn.Linear(4, 4), torch.ones(2, 4), precision="fp12")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: {"logits": x, "hidden": [x, x]},
        lambda x: (x, None, 3),
        lambda x: {"loss": x.mean(), "logits": x},
        lambda x: x.mean(),
    ],
    ids=["dict", "tuple", "own loss", "scalar"],
)
def test_a_loss_is_found_in_every_common_output(wrap: Any) -> None:
    assert trace_module(Applied(wrap), torch.ones(2, 4)).graph.backward_flops == 32


def test_a_loss_can_be_given() -> None:
    workload = trace_module(
        nn.Linear(4, 3), torch.ones(2, 4), loss=lambda y: F.cross_entropy(y, torch.zeros(2).long())
    )
    assert any("nll_loss" in op.name for op in workload.graph.ops)
    with pytest.raises(RequestError, match="the loss is not a scalar"):
        trace_module(nn.Linear(4, 3), torch.ones(2, 4), loss=lambda y: y)


def test_a_module_that_asks_for_a_gpu_is_traced_without_one() -> None:
    def on_gpu(x: torch.Tensor) -> torch.Tensor:
        return x.to("cuda").cuda() + torch.zeros(4, device="cuda")

    assert trace_module(Applied(on_gpu), torch.ones(2, 4)).notes == ()


def test_a_module_that_holds_what_cannot_be_copied_is_traced() -> None:
    net = Applied(torch.sin)
    net.lock = threading.Lock()
    assert trace_module(net, torch.ones(2, 4)).graph.params == 20


def test_keyword_inputs_and_samples_are_understood() -> None:
    bag = nn.EmbeddingBag(100, 8, mode="sum")
    inputs = {"input": torch.zeros(6, dtype=torch.long), "offsets": torch.tensor([0, 3])}
    workload = trace_module(bag, inputs, samples=2)
    assert next(op for op in workload.graph.ops if op.kind is OpKind.EMBEDDING).shape == (8,)


def test_a_workload_says_what_its_samples_are() -> None:
    image = trace_module(nn.Conv2d(3, 4, 3), torch.zeros(2, 3, 32, 32))
    assert (image.sample, image.image_size, image.input_bytes) == ("image", 32, 0.0)
    text = trace_module(nn.Embedding(10, 4), torch.zeros(2, 7, dtype=torch.long), name="words")
    assert (text.sample, text.seq_len, text.name) == ("sequence", 7, "words")


def test_latents_of_a_gan_are_no_images_of_one_pixel() -> None:
    makes = nn.ConvTranspose2d(100, 3, 8)
    judges = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 1))
    latents = torch.zeros(2, 100, 1, 1)
    both = trace_module([makes, judges], [latents, torch.zeros(2, 3, 8, 8)])
    assert (both.sample, both.image_size) == ("image", 8)
    alone = trace_module(makes, latents)
    assert (alone.sample, alone.image_size) == ("sample", 0)


@pytest.mark.parametrize(("samples", "batch"), [(48, 48), (8, 8), (2, 256)])
def test_the_batch_of_the_example_inputs_is_the_usual_batch(samples: int, batch: int) -> None:
    """A few samples are there to be traced, and no batch to train with."""
    workload = trace_module(nn.Linear(4, 4), torch.zeros(samples, 4))
    usual, why = usual_batch(workload)
    assert usual == batch
    assert why.startswith("assumed: ")
    assert ("example inputs" in why) is (samples >= 8)


def test_precision_is_that_of_the_parameters() -> None:
    net = nn.Linear(4, 4)
    assert trace_module(net, torch.zeros(2, 4)).precision == "fp32"
    assert trace_module(net.bfloat16(), torch.zeros(2, 4).bfloat16()).precision == "bf16"
