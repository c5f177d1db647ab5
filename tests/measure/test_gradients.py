"""Gradients: one worker's passes or steps tell the true noise, whatever optimizer, loss scale or mishap."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from forerun.errors import RequestError
from forerun.measure import GradientNoise, Steps, gradients, record
from forerun.measure.measurement import merged
from forerun.measure.recorder import OptimizerHooks, Recorder, installed

# The loss of a sample x is w . x: its gradient is x, whatever the weights. So the true gradient is MEAN,
# and a sample's has the variance SPREAD ** 2 in each of its parts.
SIZES = (30, 20)
MEAN = torch.full((sum(SIZES),), 0.3)
SPREAD = torch.linspace(4.0, 1.0, sum(SIZES))
SQR, VAR = float(MEAN.square().sum()), float(SPREAD.square().sum())
PHI = VAR / SQR  # 78 samples


class Sum(nn.Module):
    """Two parameters, whose product with a sample is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(size) for size in SIZES)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return (samples @ torch.cat(list(self.parts))).mean()


@dataclass
class Training:
    """A loop of one worker, of steps of so many passes."""

    passes: int = 1
    batch: int = 64  # of a step
    steps: int = 600
    rate: float = 0.1
    optimizer: Callable[..., Any] = torch.optim.SGD
    scaler: Any = None
    spoil: Callable[[int, Any], Any] = field(default=lambda step, loss: loss)
    before_update: Callable[[Sum], None] = field(default=lambda model: None)
    zero: Callable[[Any, int, int], bool] = field(default=lambda model, step, each: each == 0)

    def run(self, noise: GradientNoise | None, **given: Any) -> tuple[Sum, Recorder]:
        """Train; return the module and its recorder."""
        torch.manual_seed(0)
        model = Sum()
        optimizer = self.optimizer(model.parameters(), lr=self.rate)
        scaler = self.scaler or GradScaler("cpu", enabled=False)
        given = {"norms_every": 1, **given}
        with record(samples=self.batch, noise=noise, **given) as run:
            for step in run.steps(range(self.steps)):
                for each in range(self.passes):
                    if self.zero(model, step, each):
                        optimizer.zero_grad()
                    samples = MEAN + SPREAD * torch.randn(self.batch // self.passes, sum(SIZES))
                    loss = self.spoil(step, model(samples)) / self.passes
                    scaler.scale(loss).backward()
                self.before_update(model)
                scaler.step(optimizer)
                scaler.update()
        return model, run


def noise_of(training: Training, **given: Any) -> GradientNoise:
    noise = GradientNoise(decay=0.999)
    training.run(noise, **given)
    return noise


def is_right(noise: GradientNoise, share: float = 0.1) -> bool:
    """Whether a noise is the truth within a tenth."""
    return (noise.sqr, noise.var, noise.phi) == pytest.approx((SQR, VAR, PHI), rel=share)


@pytest.mark.parametrize("passes", [2, 4])
def test_passes_that_a_step_accumulates_tell_the_noise(passes: int) -> None:
    noise = noise_of(Training(passes))
    assert noise.steps == 600 - 2, (
        "all but the first steps, which tell the optimizer and the passes"
    )
    assert is_right(noise)
    mean_square, square_of_mean = SQR + VAR * passes / 64, SQR + VAR / 64
    assert noise.gamma == pytest.approx(mean_square / square_of_mean, rel=0.1)


def test_one_worker_without_accumulation_compares_a_step_with_the_next() -> None:
    noise = noise_of(Training(steps=1200))
    assert 580 <= noise.steps <= 600, "steps in pairs"
    assert is_right(noise)
    assert noise.gamma == pytest.approx((SQR + VAR / 64) / (SQR + VAR / 128), rel=0.1), "of both"


@pytest.mark.parametrize(
    ("share", "observed"),
    [(1e3, 21), (1e-9, 3)],
    ids=["short", "long"],
)
@pytest.mark.parametrize("passes", [1, 4])
def test_of_ten_steps_one_is_observed_or_fewer_where_observing_takes_long(
    passes: int, share: float, observed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "_SHARE", share)
    noise = noise_of(Training(passes, steps=203), norms_every=None)
    why = "in each tenth or hundredth of the 203 - 3 after warm-up, and in the second step"
    assert noise.steps == observed, why


@pytest.mark.parametrize("passes", [1, 4])
def test_a_scaled_loss_tells_the_noise_of_the_loss_and_overflows_are_left_out(passes: int) -> None:
    """The scale doubles every third step, and an overflow in every fortieth brings it back."""
    scales = set()

    def spoil(step: int, loss: Any) -> Any:
        scales.add(scaler.get_scale())
        return loss * float("inf") if step % 40 == 7 else loss

    scaler = GradScaler("cpu", init_scale=2.0**8, growth_interval=3, backoff_factor=2.0**-13)
    scaled = Training(passes, scaler=scaler, spoil=spoil, steps=1000)
    noise = noise_of(scaled)
    assert len(scales) > 10
    assert noise.steps > 250
    assert is_right(noise)


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_from_gradients_that_are_not_finite_nothing_is_learned_and_training_goes_on(
    passes: int, wrong: float
) -> None:
    noise = GradientNoise(decay=0.999)
    spoiled = Training(
        passes, steps=720, spoil=lambda step, loss: loss * (wrong if step % 9 == 4 else 1)
    )
    model, _ = spoiled.run(noise)
    assert not torch.isfinite(torch.cat(list(model.parts))).any(), (
        "the updates were made all the same"
    )
    assert noise.skipped >= 70
    assert noise.steps > 250
    assert is_right(noise, 0.15)


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_where_adam_trains_gradients_are_divided_as_its_update_is(
    passes: int, optimizer: Callable[..., Any]
) -> None:
    noise = noise_of(Training(passes, optimizer=optimizer, rate=0.001, steps=1000))
    moment = MEAN.square() + SPREAD.square() / 64  # of a step's gradient
    sqr, var = float((MEAN.square() / moment).sum()), float((SPREAD.square() / moment).sum())
    assert (noise.sqr, noise.var, noise.phi) == pytest.approx((sqr, var, var / sqr), rel=0.1)
    assert noise.phi != pytest.approx(PHI, rel=0.15), "which is another noise"


def test_adam_is_not_believed_in_its_first_steps() -> None:
    noise = noise_of(Training(4, optimizer=torch.optim.Adam, steps=7))
    assert noise.steps == 1, "the sixth tells the passes"


def test_clipping_and_unscaling_before_the_update_change_nothing() -> None:
    def clip(model: Sum) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    plain = noise_of(Training(4, steps=50))
    clipped = noise_of(Training(4, steps=50, before_update=clip))
    assert (plain.sqr, plain.var) == (clipped.sqr, clipped.var)


@pytest.mark.parametrize("passes", [1, 4])
def test_an_observed_training_has_the_same_weights_to_the_bit(passes: int) -> None:
    training = Training(passes, steps=60, optimizer=torch.optim.AdamW)
    plain, _ = training.run(None, norms_every=0)
    observed, _ = training.run(GradientNoise())
    assert all(map(torch.equal, plain.parameters(), observed.parameters()))


@pytest.mark.parametrize(
    ("training", "why"),
    [
        (Training(2, steps=20, zero=lambda *_: False), "gradients are left over"),
        (Training(2, steps=20, zero=lambda *_: True), "zeroed between two passes"),
        (Training(1, steps=20, zero=lambda *_: False), "gradients are left over"),
    ],
)
def test_what_is_no_gradient_of_one_step_is_left_out_and_that_is_told(
    training: Training, why: str
) -> None:
    noise = GradientNoise()
    _, run = training.run(noise)
    assert noise.steps == 0
    assert why in "".join(run.record()["notes"])


def test_sparse_gradients_are_left_out_and_that_is_told() -> None:
    words, noise = nn.Embedding(9, 4, sparse=True), GradientNoise()
    optimizer = torch.optim.SGD(words.parameters(), lr=0.1)
    with record(samples=4, noise=noise) as run:
        for _ in run.steps(range(14)):
            optimizer.zero_grad()
            words(torch.arange(4)).sum().backward()
            optimizer.step()
    assert noise.steps == 0
    assert "some gradients are sparse" in "".join(run.record()["notes"])


def test_one_worker_that_asks_for_nothing_has_the_noise_of_its_passes_and_keeps_no_gradient() -> (
    None
):
    _, run = Training(4, steps=400, batch=128).run(None, norms_every=None)
    measured = merged([run.record()], 128)
    assert measured.grad_sqr == pytest.approx(SQR, rel=0.3), "of 40 steps"
    assert measured.grad_var == pytest.approx(VAR, rel=0.1)
    one_pass = Training(1, steps=30)
    _, run = one_pass.run(None, norms_every=None)
    told = run.record()
    assert (told["local_sqr"], told["notes"]) == (None, [])
    assert run.gradients.every == 0, "there is nothing to compare, so nothing is looked at any more"


def test_one_worker_that_asks_for_norms_has_columns_of_noise() -> None:
    _, run = Training(1, steps=1200).run(None, norms_every=1)
    measured = merged([run.record()], 64)
    assert (measured.grad_sqr, measured.grad_var) == pytest.approx((SQR, VAR), rel=0.1)


def test_parameters_are_left_as_they_were_and_none_is_held() -> None:
    model, run = Training(1, steps=4).run(GradientNoise(), norms_every=2)
    assert all(not one._backward_hooks for one in model.parameters())
    assert all(not one._post_accumulate_grad_hooks for one in model.parameters())
    lived = [ref(one) for one in model.parameters()]
    del model
    gc.collect()
    assert [one() for one in lived] == [None, None]
    assert run.noise is not None


def test_a_noise_without_the_samples_of_a_step_is_refused_in_words() -> None:
    with (
        pytest.raises(RequestError, match=r"samples of a step are not known; pass samples="),
        record(noise=GradientNoise()),
    ):
        pass


def test_a_noise_given_within_a_runner_is_fed_by_the_runners_recorder() -> None:
    running, noise = Recorder(Steps(warmup=1, least=40, most=40)), GradientNoise()
    hooks = OptimizerHooks(running)
    try:
        with installed(running):
            Training(4, steps=30).run(noise)
    finally:
        hooks.remove()
    assert running.noise is noise
    assert noise.steps >= 27
