"""Image classifiers of the timm library, by the grammar of its names.

The library has several hundred, most of them members of families that a name describes in full:
`xcit_small_12_p8_384_dist`. A name is read by the first module that knows it; marks of how weights
were trained are left off first. Structures are those of the library in 2021 and 2022, whose
attention keeps its scores in memory.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module

from forerun.workloads.zoo.entry import Entry

_MODULES = (
    "mobile", "resnets", "byob", "plain_convs", "stem_convs", "pre_resnets", "plain_vits",
    "stage_vits", "mixed_vits",
)  # fmt: skip
_TRANSFORMERS = frozenset({"plain_vits", "stage_vits", "mixed_vits"})
_BEFORE = re.compile(r"^(tf|gluon|ssl|swsl|tv|ig|jx)_")
_AFTER = re.compile(
    r"_(ap|ns|in21k|in22k|in21ft1k|in22ft1k|22k|22kft1k|miil|sam|dino|dist|bitm|bit_teacher|ft1k)$"
)
_SIZE = re.compile(r"_(\d{3})(?=_|$)")
# Names of other libraries for a form of this one's.
_SAME = re.compile(r"^(resnet|seresnet)(\d+)_v1([bcds])$")
_NOTE = "structure as of the timm library in 2022; attention keeps its scores in memory"


@lru_cache(maxsize=1024)
def find(name: str) -> Entry | None:
    """Return the entry of a name of the library, None where no family knows it.

    Args:
        name: as the library has it; case, `-` for `_` and `timm-` before it do not matter.
    """
    from forerun.workloads.zoo.network import Network, later

    label = name.strip().lower().replace("_", "-")
    plain = label.removeprefix("timm-").replace("-", "_")
    for candidate in _candidates(plain):
        module = _module(candidate)
        if module is None:
            continue
        size = _SIZE.findall(candidate)
        return Network(
            name=label,
            family=re.split(r"[^a-z]", candidate)[0],
            emit=later(f"timm.{module}", "classifier", candidate),
            source="the timm library, 2022",
            description="image classifier of the timm library, 1000 classes",
            size=int(size[-1]) if size and int(size[-1]) % 8 == 0 else 224,
            notes=(_NOTE,),
        ).entry()
    return None


def keeps_scores(name: str) -> bool:
    """Whether a name is that of a transformer, which keeps its scores in memory."""
    plain = name.strip().lower().replace("-", "_")
    return any(_module(candidate) in _TRANSFORMERS for candidate in _candidates(plain))


def _candidates(name: str) -> list[str]:
    """Return the name, and what is left of it as marks of training are taken off."""
    found = [name]
    for _ in range(3):
        shorter = _AFTER.sub("", found[-1])
        if shorter != found[-1]:
            found.append(shorter)
    if match := _SAME.fullmatch(_BEFORE.sub("", name)):
        form = {"b": "", "c": "c", "d": "d", "s": "s"}[match[3]]
        found.append(f"{match[1]}{match[2]}{form}")
    return [*found, *(_BEFORE.sub("", n) for n in found if _BEFORE.match(n))]


def _module(name: str) -> str | None:
    for module in _MODULES:
        if import_module(f"{__name__}.{module}").known(name):
            return module
    return None
