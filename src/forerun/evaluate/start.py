"""Start: what a predictor knows before it is fitted: its priors, or the constants shipped with it."""

from __future__ import annotations

from collections.abc import Sequence

from forerun import registry
from forerun.contracts import Predictor
from forerun.errors import RequestError

STARTS = ("priors", "shipped")


def starting(
    names: Sequence[str], start: str = "", fitting: bool = True
) -> tuple[list[Predictor], str]:
    """Return predictors as they start, and that start in words.

    Shipped constants were learned from published runs, which may be the judged ones; so a fit
    starts from the priors unless something else is asked for. Where nothing is fitted a predictor
    answers as `forerun predict` does, which is with its shipped constants where it has any.

    Args:
        names: registered predictors; `kind.shipped()`, where a kind has it, makes the shipped one.
        start: one of `STARTS`, "" to choose.
        fitting: whether the predictors will be fitted.

    Raises:
        UnknownNameError: no such predictor.
        RequestError: the shipped constants are asked for, and none of them has any.
    """
    kinds = {name: registry.load("predictors", name) for name in names}
    has = [name for name, kind in kinds.items() if hasattr(kind, "shipped")]
    if start == "shipped" and not has:
        raise RequestError(
            "--start shipped", f"{', '.join(names)} comes without constants of its own",
            "leave --start out, or name a predictor that has them",
        )  # fmt: skip
    shipped = set(has) if start == "shipped" or (not start and not fitting) else set()
    made = [kinds[name].shipped() if name in shipped else kinds[name]() for name in names]
    if not shipped:
        return made, "priors"
    return made, f"shipped constants of {', '.join(n for n in names if n in shipped)}"
