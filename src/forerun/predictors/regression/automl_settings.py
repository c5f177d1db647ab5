"""Settings of the Ray study's AutoML: what is tried, how it is judged, and what a grid holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.errors import RequestError, one_of
from forerun.predictors.regression.augment import Recipe
from forerun.predictors.regression.partitions import SetAside
from forerun.predictors.regression.selection import SELECTIONS
from forerun.predictors.regression.techniques import DEFAULTS, check

SEARCHES = ("defaults", "grid", "tpe")
BEYOND = ("farthest", "winner")
# What a grid tries beside the defaults, and what TPE draws from: lists, or (least, most) as logs.
GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "Ridge": {"alpha": (0.001, 0.01, 0.1, 1.0, 10.0)},
    "XGBoost": {"learning_rate": (0.05, 0.1), "max_depth": (6, 100), "gamma": (0.0, 0.25)},
    "DecisionTree": {"max_depth": (3, 6, 12)},
    "RandomForest": {"n_estimators": (5, 50), "max_depth": (3, 10), "min_samples_split": (2, 0.1)},
    "SVR": {"C": (0.001, 1.0, 10.0), "epsilon": (0.01, 0.05)},
    "NNLS": {"alpha": (0.0001, 0.001, 0.01)},
    "Stepwise": {"p_to_add": (0.01, 0.05)},
    "MLP": {"learning_rate": (0.001, 0.01)},
}


@dataclass(frozen=True)
class Settings:
    """What is tried, and how it is judged.

    Attributes:
        recipe: of the features.
        normalise: whether features and times are standardised.
        selection: of features: "" none, `forward` by MAPE, `importance` by XGBoost's gains.
        most_features: of a forward selection.
        tolerance: of an importance: its features' gains add up to this share.
        techniques: names of `techniques.DEFAULTS`.
        search: of hyper-parameters: `defaults`, `grid`, or `tpe`.
        grids: by technique and parameter, the values that are tried.
        trials: of `tpe`, for each technique.
        hp_selection, validation: how rows are set aside for either.
        beyond: who answers for more devices than any run had: `farthest`, the experiment that,
            taught by the runs on fewer devices, errs least on those on more; or the `winner`, as
            in the study, which may be a tree, and flat out there.
        seed: of every draw.
    """

    recipe: Recipe = field(default_factory=Recipe)
    normalise: bool = True
    selection: str = ""
    most_features: int = 8
    tolerance: float = 0.95
    techniques: tuple[str, ...] = tuple(DEFAULTS)
    search: str = "defaults"
    grids: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=lambda: GRIDS)
    trials: int = 10
    hp_selection: SetAside = field(default_factory=SetAside)
    validation: SetAside = field(default_factory=SetAside)
    beyond: str = "farthest"
    seed: int = 0

    def checked(self) -> Settings:
        """Return the settings. Raises RequestError where one of them is no choice."""
        choices = (
            (self.search, SEARCHES), (self.selection, SELECTIONS), (self.beyond, BEYOND),
        )  # fmt: skip
        for asked, known in choices:
            if asked not in known:
                raise RequestError(f"an AutoML with {asked!r}", "there is no such choice",
                                   one_of(asked, known))  # fmt: skip
        if not self.techniques:
            raise RequestError("an AutoML", "it has no technique", one_of("", DEFAULTS))
        for technique in self.techniques:
            check(technique, {})
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Settings:
        """Return what `to_dict` wrote; what is not there is as usual.

        Raises:
            KeyError, TypeError or ValueError: it is not that.
            RequestError: a setting is no choice.
        """
        given = {name: _tuples(value) for name, value in values.items()}
        parts: tuple[tuple[str, type], ...] = (
            ("recipe", Recipe), ("hp_selection", SetAside), ("validation", SetAside),
        )  # fmt: skip
        for name, made in parts:
            if name in given:
                given[name] = made(**given[name])
        return Settings(**given).checked()


def _tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists."""
    if isinstance(value, dict):
        return {name: _tuples(one) for name, one in value.items()}
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
