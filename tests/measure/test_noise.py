"""Noise: its averages find the truth, gamma of other workers and batches follows, and a restart loses nothing."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.measure import GradientNoise
from forerun.measure.noise import gradient_noise

SQR, VAR = 3.0, 96.0
PHI = VAR / SQR
WORKERS = st.integers(1, 4096)
BATCHES = st.floats(1.0, 1e7)


def told(count: int, batch: float, sqr: float = SQR, var: float = VAR) -> tuple[float, float]:
    """Return what is expected of the two norms of `count` gradients."""
    return sqr + var * count / batch, sqr + var / batch


def known(sqr: float = SQR, var: float = VAR) -> GradientNoise:
    noise = GradientNoise()
    assert noise.observe(*told(2, 64, sqr, var), 2, 64)
    return noise


def test_gradient_noise_is_recovered_from_the_two_norms() -> None:
    for count, batch in ((2, 8), (4, 32), (64, 4096)):
        assert gradient_noise(*told(count, batch), count, batch) == pytest.approx((SQR, VAR))


def test_before_the_first_step_nothing_is_known() -> None:
    noise = GradientNoise()
    assert noise.steps == noise.skipped == 0
    assert all(math.isnan(one) for one in (noise.sqr, noise.var, noise.phi, noise.gamma))
    assert not noise.stable


def test_the_first_step_counts_in_full_and_workers_and_batch_may_change() -> None:
    noise = known()
    for count, batch in ((4, 64), (4, 512), (16, 512)):
        assert (noise.sqr, noise.var, noise.phi) == pytest.approx((SQR, VAR, PHI))
        assert noise.observe(*told(count, batch), count, batch)
        assert noise.gamma == pytest.approx(told(count, batch)[0] / told(count, batch)[1])


def test_recent_steps_weigh_most_and_a_step_one_memory_ago_weighs_a_third() -> None:
    noise = GradientNoise(decay=0.9)
    for _ in range(200):
        noise.observe(*told(2, 64, sqr=1.0), 2, 64)
    for _ in range(10):
        noise.observe(*told(2, 64, sqr=2.0), 2, 64)
    assert noise.sqr == pytest.approx(2.0 - 0.9**10, rel=1e-6)


@pytest.mark.parametrize(
    ("norms", "count", "batch"),
    [
        ((math.nan, 1.0), 2, 8.0), ((1.0, math.nan), 2, 8.0), ((math.inf, math.inf), 2, 8.0),
        ((math.inf, 1.0), 2, 8.0), ((1e308, 1e308), 1000, 8.0), ((2.0, 1.0), 1, 8.0),
        ((2.0, 1.0), 2, 0.0), ((2.0, 1.0), 2, math.inf),
    ],
)  # fmt: skip
def test_from_a_figure_that_is_not_finite_or_of_one_gradient_nothing_is_learned(
    norms: tuple[float, float], count: int, batch: float
) -> None:
    noise = known()
    before = noise.state()
    assert not noise.observe(*norms, count, batch)
    assert noise.skipped == 1
    assert noise.state() == pytest.approx({**before, "skipped": 1}, nan_ok=True)


def test_where_luck_leaves_no_gradient_the_scale_is_infinite_and_gamma_is_the_workers() -> None:
    noise = GradientNoise()
    assert noise.observe(1.0, 0.1, 4, 64)
    assert noise.sqr < 0
    assert noise.phi == math.inf
    assert noise.gamma_at([1, 2, 8], 64).tolist() == [1, 2, 8]


@given(sqr=st.floats(1e-6, 1e6), var=st.floats(0.0, 1e9), workers=WORKERS, batch=BATCHES)
def test_gamma_is_the_ratio_of_what_is_expected_of_the_two_norms(
    sqr: float, var: float, workers: int, batch: float
) -> None:
    mean_square, square_of_mean = told(workers, batch, sqr, var)
    found = known(sqr, var).gamma_at(workers, batch)
    assert found == pytest.approx(mean_square / square_of_mean, rel=1e-4)


@given(phi=st.floats(1e-3, 1e9), workers=WORKERS, batch=BATCHES)
def test_gamma_lies_between_one_and_the_workers(phi: float, workers: int, batch: float) -> None:
    found = float(known(1.0, phi).gamma_at(workers, batch))
    assert 1.0 - 1e-9 <= found <= workers * (1 + 1e-9)


@given(phi=st.floats(1e-2, 1e6), workers=st.integers(2, 512), batch=st.floats(1.0, 1e5))
def test_gamma_grows_with_workers_and_with_noise_and_shrinks_with_the_batch(
    phi: float, workers: int, batch: float
) -> None:
    noise, noisier = known(1.0, phi), known(1.0, 2 * phi)
    here = noise.gamma_at(workers, batch)
    assert noise.gamma_at(workers + 1, batch) > here
    assert noise.gamma_at(workers, 2 * batch) < here
    assert noisier.gamma_at(workers, batch) > here


def test_gamma_of_many_workers_and_batches_comes_at_once() -> None:
    noise = known()
    table = noise.gamma_at(np.array([[2], [4]]), np.array([16, 64, 256]))
    assert table.shape == (2, 3)
    assert table[1, 2] == noise.gamma_at(4, 256)


def test_it_is_stable_once_gamma_stays_where_it_is_and_no_sooner() -> None:
    noise = GradientNoise(decay=0.9)
    when, settled = [], []
    for step in range(400):
        rising = 96.0 * min(step / 200, 1.0)
        noise.observe(*told(8, 64, var=rising), 8, 64)
        (settled if noise.stable else when).append(step)
    assert min(settled) > 100, "it rose"
    assert settled == list(range(settled[0], 400)), "and then it stayed"
    assert settled[0] < 260


def test_noise_about_a_level_is_stable_and_a_change_of_the_level_is_noticed() -> None:
    rng, noise = np.random.default_rng(0), GradientNoise()
    seen = {}
    for step in range(1200):
        luck = rng.lognormal(0.0, 0.3, 2)
        sqr = SQR if step < 800 else SQR / 20  # as where the learning rate falls
        noise.observe(*told(8, 64, sqr * luck[0], VAR * luck[1]), 8, 64)
        seen[step + 1] = noise.stable
    assert not seen[399]
    assert seen[400]
    assert seen[800]
    assert not seen[1000]


def test_a_restart_goes_on_where_it_was() -> None:
    first, second, rng = GradientNoise(), GradientNoise(decay=0.5), np.random.default_rng(0)
    for _ in range(250):
        first.observe(*told(4, 64, *rng.lognormal(0.0, 0.3, 2)), 4, 64)
    first.observe(math.nan, 1.0, 4, 64)
    second.restore(json.loads(json.dumps(first.state())))
    for _ in range(250):
        norms = told(4, 64, *rng.lognormal(0.0, 0.3, 2))
        first.observe(*norms, 4, 64)
        second.observe(*norms, 4, 64)
    assert second.state() == first.state()
    assert (second.phi, second.stable) == (first.phi, first.stable)


def test_what_is_no_state_or_no_decay_is_refused_in_words() -> None:
    noise = GradientNoise()
    with pytest.raises(RequestError, match=r"it has no batch, .* give what `state` returned"):
        noise.restore({"decay": 0.9})
    for decay in (1.0, -0.1, math.nan):
        with pytest.raises(RequestError, match="choose one from 0 to below 1"):
            GradientNoise(decay)
