"""Saved constants, with what was learned of them, and those that are shipped.

`fitted_rows.json` has fingerprints of the runs behind them: nobody is judged on these by mistake.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.predictors.analytic.constants import Constants, Framework
from forerun.predictors.analytic.families import FAMILIES, bounds_of

# A posterior as wide as this share of its prior has learned nothing worth the name.
UNIDENTIFIED = 0.9
# So many prior standard deviations from its prior a constant takes up what the model gets wrong.
FAR_OFF = 3.0
DIGITS = 4  # significant ones of a constant; its intervals and spreads have one less
FILE, ROWS_FILE = "constants.json", "fitted_rows.json"
FORMAT = "forerun-constants/2"
_COARSE = ("low", "high", "log_sd", "prior_log_sd")


@dataclass(frozen=True)
class Learned:
    """One constant after a fit: value, 5-95 % interval and prior in `unit`.

    log_sd, prior_log_sd: log standard deviations after and before the fit. runs: how many inform it.
    """

    name: str
    unit: str
    value: float
    low: float
    high: float
    prior: float
    log_sd: float
    prior_log_sd: float
    runs: int
    sources: tuple[str, ...]

    @staticmethod
    def of(
        name: str, value: float, prior: float, log_sds: tuple[float, float], sources: Iterable[Any]
    ) -> Learned:
        """Return a constant; log_sds: after and before; sources: of each run that informs it."""
        reach, (low, high) = math.exp(Z95 * log_sds[0]), bounds_of(name)
        from_where = [str(source) for source in sources]
        return Learned(
            name, FAMILIES[name.partition("[")[0]].unit, value, max(value / reach, low),
            min(value * reach, high), prior, *log_sds, len(from_where),
            tuple(sorted(set(from_where) - {""})),
        )  # fmt: skip

    @property
    def identified(self) -> bool:
        """Whether the runs say more than the prior did."""
        return self.log_sd <= UNIDENTIFIED * self.prior_log_sd

    @property
    def sds_from_prior(self) -> float:
        """How many prior log standard deviations the value lies from it; NaN where it is 0."""
        if not (self.value > 0 and self.prior > 0 and self.prior_log_sd > 0):
            return math.nan
        return abs(math.log(self.value / self.prior)) / self.prior_log_sd

    @property
    def absorbs_misfit(self) -> bool:
        """Whether it went where no such constant lies: it takes up what else is wrong."""
        return self.sds_from_prior > FAR_OFF

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        far = self.sds_from_prior
        return {
            **asdict(self), "sources": list(self.sources), "identified": self.identified,
            "sds_from_prior": far if math.isfinite(far) else None,
            "absorbs_misfit": self.absorbs_misfit,
        }  # fmt: skip


# What a row of `learned` holds, in this order.
COLUMNS = tuple(f.name for f in fields(Learned))[1:]


def rows_of(learned: Iterable[Learned]) -> dict[str, list[Any]]:
    """Return what was learned, by name: values in the order of `COLUMNS`, rounded."""
    return {
        entry.name: [
            *(round_off(getattr(entry, name), DIGITS - (name in _COARSE)) for name in COLUMNS[:-1]),
            list(entry.sources),
        ]
        for entry in learned
    }


def learned_of(rows: Mapping[str, Any]) -> tuple[Learned, ...]:
    """Return what `rows_of` wrote. Raises ValueError for anything else."""
    found = []
    for name, row in rows.items():
        if not isinstance(row, list) or len(row) != len(COLUMNS):
            raise ValueError(f"{name} has not the {len(COLUMNS)} values {', '.join(COLUMNS)}")
        values = dict(zip(COLUMNS, row, strict=True))
        for column in COLUMNS[1:-1]:
            _checked(values[column], f"{column} of {name}")
        values["sources"] = tuple(map(str, values["sources"]))
        found.append(Learned(name=name, **values))
    return tuple(found)


def settled_by(learned: Iterable[Learned]) -> dict[str, float]:
    """Return the posterior log standard deviations of what runs identified, by name."""
    return {entry.name: entry.log_sd for entry in learned if entry.identified}


def round_off(value: Any, digits: int = DIGITS) -> Any:
    """Return a number with so many significant digits, anything else as it is."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def with_changes(prior: Constants, changes: Mapping[str, Any]) -> Constants:
    """Return the priors with saved values put in. Raises ValueError for what is no constant."""
    made: dict[str, Any] = {}
    for name, value in changes.items():
        old = vars(prior).get(name)
        if old is None:
            raise ValueError(f"{name!r} is no constant")
        if name == "frameworks":
            made[name] = {**old, **{k: _profile(old, k, v) for k, v in value.items()}}
        elif isinstance(old, Mapping):
            made[name] = {**old, **{k: _checked(v, f"{name}[{k}]") for k, v in value.items()}}
        else:
            made[name] = _checked(value, name)
    return replace(prior, **made)


def _profile(known: Mapping[str, Framework], name: str, values: Mapping[str, Any]) -> Framework:
    if name not in known or not values.keys() <= vars(known[name]).keys():
        raise ValueError(f"frameworks[{name}] holds no framework's constants")
    checked = {k: _checked(v, f"{k} of {name or 'other'}") for k, v in values.items()}
    return replace(known[name], **checked)


def _checked(value: Any, name: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0.0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}, no number from zero upward")
    return value


def text_of(values: Mapping[str, Any]) -> str:
    """Return JSON with one line for each member of the groups in it, for people to read."""

    def group(value: Any) -> str:
        if not isinstance(value, Mapping) or not value:
            return json.dumps(value)
        lines = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
        return "{\n" + ",\n".join(lines) + "\n}"

    return "{\n" + ",\n".join(f"{json.dumps(k)}: {group(v)}" for k, v in values.items()) + "\n}\n"


def place() -> Traversable:
    """Return the folder of the files."""
    return files("forerun.predictors.analytic")


def has_shipped() -> bool:
    """Whether constants come with this package."""
    return (place() / FILE).is_file()


def shipped_constants() -> tuple[Constants, tuple[Learned, ...]]:
    """Return the shipped constants, and what was learned of each. Raises RequestError."""
    return _shipped(str(place()))


@cache
def _shipped(folder: str) -> tuple[Constants, tuple[Learned, ...]]:
    content = _read(FILE, folder)
    try:
        learned = learned_of(content["learned"])
        constants = with_changes(Constants(), content["constants"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(FILE, str(error)) from None
    return replace(constants, settled=settled_by(learned)), learned


def shipped_made() -> Mapping[str, Any]:
    """Return how the file was made: tables with counts, split, seed, commit, date and command."""
    made: Mapping[str, Any] = _read(FILE, str(place()))["made"]
    return made


def shipped_rows() -> Mapping[str, str]:
    """Return packed fingerprints of the runs behind the shipped constants, by table."""
    content, made = _read(ROWS_FILE, str(place())), shipped_made()
    if content.get("made") != {name: made[name] for name in ("date", "commit")}:
        raise _unreadable(ROWS_FILE, f"it was not made with {FILE}")
    rows: Mapping[str, str] = content["rows"]
    return rows


@cache
def _read(name: str, folder: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((place() / name).read_text(encoding="utf-8"))
        found = content.get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise _unreadable(name, str(error)) from None
    if found != FORMAT:
        raise _unreadable(name, f"its format is {found!r}, this is {FORMAT!r}")
    return content


def _unreadable(name: str, found: str) -> RequestError:
    return RequestError(
        f"reading the shipped {name}", found,
        "install forerun again (in a checkout: `make constants`), or start from the priors with"
        " --start priors",
    )  # fmt: skip
