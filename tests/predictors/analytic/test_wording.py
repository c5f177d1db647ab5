"""Wording: every constant that a fit can move has words and a unit that a person reads."""

from __future__ import annotations

from collections import Counter

import pytest

from forerun.predictors.analytic.constants import FRAMEWORKS, Constants
from forerun.predictors.analytic.families import FAMILIES, constant_words, value_words


def test_every_family_is_a_constant_of_physics_or_of_a_framework() -> None:
    """Words, priors and bounds stand in one table, and none is left of a constant that is gone."""
    constants = Constants()
    for name in FAMILIES:
        level, _, field = name.partition(".")
        assert hasattr(constants.frameworks["pytorch"] if field else constants, field or level)


def test_no_two_families_have_the_same_words_but_of_a_framework_and_of_its_kind() -> None:
    counts = Counter(words for words in (f.words for f in FAMILIES.values()))
    assert [words for words, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("framework.host_seconds[megatron]", 9.3e-5, "host time a kernel, megatron: 93 us"),
        ("framework.host_seconds[other]", 9e-6, "host time a kernel, other frameworks: 9 us"),
        ("tensor_efficiency[conv_1x1]", 0.2, "peak reached on matrix units, 1x1 convolutions: 20 %"),
        ("link_efficiency[nvlink]", 0.75, "link's bandwidth reached, nvlink: 75 %"),
        ("framework.workspace_bytes[jax]", 3e8, "workspace of matrix libraries, jax: 300 MB"),
        ("layer_power", 8.0, "device time joins the host's floor (power of a norm): 8"),
        ("workload_scale[gpt2 on jax]", 1.1, "device time, times its operations', gpt2 on jax: 1.1x"),
        ("shape_scale[h64 f256 a4/4 e8 s512 bf16 jax t4 b1 tp2 cp1 ep4]", 0.9,
         "layer's time, times its parts', h64 f256 a4/4 e8 s512 bf16 jax t4 b1 tp2 cp1 ep4: 0.9x"),
        ("a_guest's[own]", 1.5, "a guest's, own: 1.5"),
    ],
)  # fmt: skip
def test_a_constant_reads_as_a_sentence(name: str, value: float, said: str) -> None:
    assert f"{constant_words(name)}: {value_words(name, value)}" == said


def test_what_moves_a_kind_of_frameworks_is_told_over_its_prior() -> None:
    prior = FRAMEWORKS["pytorch"].host_seconds
    said = value_words("kind.host_seconds[eager]", 1.1 * prior, prior)
    assert said == "1.1x"
    assert constant_words("kind.host_seconds[eager]").endswith("frameworks that run eagerly")
