"""Remedies: what is said to make a job fit fits when it is asked for."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Run


def named(text: str) -> list[str]:
    """Return the options of each remedy."""
    found = text.partition("what fits, the cheapest first: ")[2].partition(";")[0]
    return re.findall(r"(?:^|, )(.+?) \([^)]* a device[^)]*\)", found.replace("\n", ""))


@pytest.mark.parametrize(
    ("ask", "holds"),
    [
        (("gpt2-xl", "--cluster", "1x1xrtx-4090"), "--optimizer paged_adamw_8bit"),
        (("llama3-8b", "--cluster", "1x1xrtx-4090"), "--task qlora --seq-len 4096"),
        (("llama3.1-70b", "--cluster", "1x8xh100-sxm-80gb", "--task", "dpo"), "--lora-rank 16"),
        (("llama3-8b", "--cluster", "1x2xa100-sxm-40gb", "--framework", "megatron"), "--cluster"),
        (("llama3-8b", "--cluster", "1x1xa100-sxm-80gb", "--emit", "torchtitan"), "--cluster"),
        (("llama3-8b", "--cluster", "1x1xa100-sxm-80gb", "--emit", "nemo"), "--task lora"),
    ],
)
def test_each_remedy_fits_when_it_is_asked_for(
    forerun: Run, ask: tuple[str, ...], holds: str
) -> None:
    done = forerun("predict", *ask)
    assert done.code == 3
    remedies = named(done.err)
    assert 1 <= len(remedies) <= 4
    assert any(words.startswith(holds) for words in remedies), remedies
    assert ("paged to the host above 24 GB" in done.err) == (
        holds == "--optimizer paged_adamw_8bit"
    )
    for words in remedies:
        options = words.split()
        given = list(ask)
        for name in options[::2]:
            if name in given:
                at = given.index(name)
                del given[at : at + 2]
        emits = "--emit" in ask
        again = forerun("predict", *given, *options, *([] if emits else ["--json"]))
        assert again.code == 0, (words, again.err)
        fits = re.search("fits +probability >?([0-9.]+)", again.out) if emits else None
        assert (float(fits[1]) if fits else again.json()["fits"]) >= 0.9
