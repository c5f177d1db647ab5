"""Auto: the predictor that the runs themselves choose, question by question.

Telling: who was chosen for which kind of question, by what error, against whom, and who was not.

Saving: what the choice knows as plain values, each member in its own JSON, and back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import Learned
from forerun.predictors.choice.candidates import ANALYTIC, Members, candidate_names
from forerun.predictors.choice.chosen import Chosen
from forerun.predictors.choice.quantities import states_plan, told
from forerun.predictors.choice.questions import WORDS, Extent, Questions, Seen
from forerun.predictors.choice.trials import Trials
from forerun.predictors.choice.work import MOST_SECONDS_IN_ALL, MOST_WORK_IN_ALL
from forerun.predictors.saved import read_saved
from forerun.predictors.starts import PRIORS, SHIPPED, started
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import counted, format_percent

_SPANS = ("machines", "nodes", "share", "dataset", "cores", "wire")


def unsaved(chosen: Chosen) -> tuple[str, ...]:
    """Return the members that have no JSON form."""
    return tuple(n for n, one in chosen.members.fitted.items() if not hasattr(one, "to_json"))


def chosen_dict(chosen: Chosen) -> dict[str, Any]:
    """Return plain values of what was learned of one quantity, without members that cannot be saved."""
    gone = unsaved(chosen)
    kept = {n: one for n, one in chosen.members.fitted.items() if n not in gone}
    return {
        "quantity": chosen.quantity,
        "members": {name: json.loads(_text(one)) for name, one in kept.items()},
        "failed": {**chosen.members.failed, **dict.fromkeys(gone, "it has no JSON form")},
        "seen": [_extent_dict(group, one) for group, one in chosen.seen.extents.items()],
        "trials": _trials_dict(chosen.trials, [n for n in chosen.names if n not in gone]),
    }


def chosen_of(saved: Mapping[str, Any]) -> Chosen:
    """Return what `chosen_dict` wrote. Raises KeyError, TypeError or ValueError where it did not."""
    fitted = {}
    for name, text in saved["members"].items():
        kind = registry.load("predictors", text["predictor"])
        fitted[name] = kind.from_json(json.dumps(text))
    seen = Seen({tuple(one["group"]): _extent(one) for one in saved["seen"]})
    failed = {str(name): str(why) for name, why in saved["failed"].items()}
    return Chosen(str(saved["quantity"]), Members(fitted, failed), seen, _trials(saved["trials"]))


def _text(one: Predictor) -> str:
    return str(one.to_json())  # type: ignore[attr-defined]  # those without were left out


def _extent_dict(group: tuple[str, ...], one: Extent) -> dict[str, Any]:
    spans = {name: [_plain(v) for v in getattr(one, name)] for name in _SPANS}
    return {
        "group": group, "configurations": one.configurations, **spans,
        "kinds": sorted(one.kinds), "clusters": sorted(one.clusters),
        "layouts": sorted(layout.hex() for layout in one.layouts),
    }  # fmt: skip


def _extent(saved: Mapping[str, Any]) -> Extent:
    spans: dict[str, Any] = {
        name: tuple(np.nan if v is None else float(v) for v in saved[name]) for name in _SPANS
    }
    return Extent(
        configurations=int(saved["configurations"]),
        kinds=frozenset(tuple(kind) for kind in saved["kinds"]),
        clusters=frozenset(saved["clusters"]),
        layouts=frozenset(bytes.fromhex(text) for text in saved["layouts"]), **spans,
    )  # fmt: skip


def _trials_dict(trials: Trials, names: list[str]) -> dict[str, Any]:
    at = [trials.names.index(name) for name in names]
    asked = trials.questions
    return {
        "names": names, "kins": asked.kins,
        **{name: getattr(asked, name).tolist() for name in ("kind", "doublings", "known", "kin")},
        "error": _listed(trials.error[:, at]), "reach": _listed(trials.reach[:, at]),
        "cell": trials.cell.tolist(), "folds": trials.folds, "dropped": trials.dropped,
        "runs": trials.runs, "cut": trials.cut, "late": trials.late,
        "familiar": trials.familiar, "unit": trials.unit.tolist(),
    }  # fmt: skip


def _trials(saved: Mapping[str, Any]) -> Trials:
    questions = Questions(
        np.array(saved["kind"], dtype=np.int8), np.array(saved["doublings"], dtype=np.float64),
        np.array(saved["known"], dtype=np.float64), np.array(saved["kin"], dtype=np.int64),
        tuple(saved["kins"]),
    )  # fmt: skip
    names, rows = tuple(saved["names"]), len(questions)
    used, every = (int(count) for count in saved["runs"])
    return Trials(
        names, questions,
        np.array(saved["error"], dtype=np.float64).reshape(rows, len(names)),
        np.array(saved["reach"], dtype=np.float64).reshape(rows, len(names), 2),
        np.array(saved["cell"], dtype=np.int64),
        tuple((str(words), int(count)) for words, count in saved["folds"]),
        {str(name): str(why) for name, why in saved["dropped"].items()}, (used, every),
        int(saved.get("cut", 0)), bool(saved.get("late", False)), int(saved.get("familiar", 0)),
        np.array(saved["unit"], dtype=np.int64),
    )  # fmt: skip


def _listed(values: NDArray[np.float64]) -> Any:
    cells = values.astype(object)
    cells[np.isnan(values)] = None
    return cells.tolist()


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


_SHOWN = 4  # candidates of one kind of question that are named
_ALL = 0.995  # answered: as good as all


def verdicts(chosen: Chosen) -> list[dict[str, Any]]:
    """Return, for each kind of question that trials asked, how each candidate did, best first.

    Each has `quantity`, `question`, `judged` (runs that stood for it), and `candidates`: name,
    median_ape (percent, of those answered), answered (share), weight (mean over the judged runs).
    """
    trials = chosen.trials
    if not len(trials):
        return []
    weight = chosen.trial_weights()
    told = []
    for kind in np.unique(trials.questions.kind):
        rows = np.flatnonzero(trials.questions.kind == kind)
        held = weight[rows][weight[rows].sum(axis=1) > 0]
        share = held.mean(axis=0) if len(held) else np.zeros(len(trials.names))
        entries = [
            {"name": name, **_figures(trials.error[rows, c]), "weight": float(share[c])}
            for c, name in enumerate(trials.names)
        ]
        entries.sort(key=lambda one: (-one["weight"], one["median_ape"] or np.inf))
        told.append({
            "quantity": chosen.quantity, "question": WORDS[int(kind)], "judged": len(rows),
            "candidates": entries,
        })  # fmt: skip
    return told


def _figures(error: NDArray[np.float64]) -> dict[str, Any]:
    answered = np.isfinite(error)
    off = 100 * np.abs(np.expm1(-error[answered]))
    median = float(np.median(off)) if len(off) else None
    return {"median_ape": median, "answered": float(answered.mean())}


def _entry_words(entry: Mapping[str, Any]) -> str:
    """Return a candidate with its error, its weight, and how much it answers where not all."""
    part = f", answers {format_percent(entry['answered'])}" if entry["answered"] < _ALL else ""
    error = format_percent(entry["median_ape"] / 100, 1)
    return f"{entry['name']} {error} (weight {entry['weight']:.2f}{part})"


def _unjudged(names: list[str]) -> str:
    """Return the words on candidates that answered no judged run, but may answer a row."""
    if not names:
        return ""
    return (
        f"; without an answer there, as fewer runs taught them: {', '.join(names)}; where all runs"
        " teach them one, it counts by its band and what is known of them"
    )


def reasons(chosen: Chosen) -> Iterator[str]:
    """Yield the choice in sentences."""
    trials = chosen.trials
    used, every = trials.runs
    lead = f"choice of the {chosen.quantity}'s time"
    if not len(trials):
        yield (
            f"{lead}: {counted(every, 'run')} {'leaves' if every == 1 else 'leave'} none to judge the candidates by, so what is known"
            f" of them from elsewhere chooses among {', '.join(trials.names) or 'none'}"
        )
    else:
        part = "" if used == every else f" (of {every:,})"
        yield (
            f"{lead}: {counted(len(trials.names), 'candidate')} judged on {counted(used, 'run')}{part}"
            f" left out in {counted(len(trials.folds), 'way')}; an answer is the mean of the best,"
            " weighed by their errors on questions of its kind and, the more the fewer runs judged"
            " them, by the width of their own bands and what is known of them from elsewhere"
        )
    if trials.familiar:
        yield (
            f"{counted(trials.familiar, 'judged run')} {'is' if trials.familiar == 1 else 'are'} of a workload"
            " and device whose runs taught the constants shipped with physics: there it was judged as"
            " it starts from its priors, so that it is not flattered; it answers from the shipped ones"
        )
    if trials.cut:
        why = (
            f"trials had taken {MOST_SECONDS_IN_ALL:.0f} s of this machine's processor, and a faster"
            " one would judge by more"
            if trials.late
            else f"the others count for {MOST_WORK_IN_ALL:.0f} s of work, as on any machine"
        )
        yield f"{counted(trials.cut, 'further way')} to leave runs out not tried: {why}"
    for one in verdicts(chosen):
        best = [entry for entry in one["candidates"] if entry["median_ape"] is not None]
        said = ", ".join(map(_entry_words, best[:_SHOWN])) or "nobody answers"
        more = f" and {len(best) - _SHOWN} more" if len(best) > _SHOWN else ""
        silent = [entry["name"] for entry in one["candidates"] if entry["median_ape"] is None]
        yield (
            f"{one['question']}: median errors on {counted(one['judged'], 'judged run')}: {said}{more}"
            + _unjudged(silent)
        )
    for name, why in trials.dropped.items():
        yield f"{name}: dropped from some trials: {why}"
    for name, why in chosen.members.failed.items():
        yield f"{name}: not among them: {why}"


VERSION = 3


@dataclass(frozen=True)
class Auto:
    """Whoever of the candidates does best on runs held out as the question holds its job out.

    Without runs it is the analytic predictor. With runs every candidate is fitted to them and
    judged on parts of them that it was not shown (see `folds`); each row is answered by those that
    did best on questions of its kind (see `questions`, `weighing`), weighed by how well they did.

    Attributes:
        start: which constants physics starts from, see `starts`.
        names: of the candidates; empty for all that are registered.
        chosen: what runs have taught, for each quantity that they time; the first is answered.
        as_they_were_run: whether most runs state no plan, so that a job that states none is taken
            to be run as they were.
    """

    start: str = PRIORS
    names: tuple[str, ...] = ()
    chosen: tuple[Chosen, ...] = ()
    as_they_were_run: bool = False

    name = "auto"

    @staticmethod
    def shipped() -> Auto:
        """Return it with the shipped constants. Raises as `AnalyticPredictor.shipped`."""
        return Auto(SHIPPED)

    @staticmethod
    def shipped_made() -> Mapping[str, Any] | None:
        """Return how the shipped constants were made. Raises as `AnalyticPredictor.shipped_made`."""
        return AnalyticPredictor.shipped_made()

    @staticmethod
    def shipped_rows() -> Mapping[str, str]:
        """Return what taught the shipped constants. Raises as `AnalyticPredictor.shipped_rows`."""
        return AnalyticPredictor.shipped_rows()

    def fit(self, runs: Runs) -> Auto:
        """Return one whose candidates have learned from these runs alone.

        Raises:
            RequestError: no run has a time.
        """
        runs = sorted_runs(runs)
        quantities = told(runs)
        if not quantities:
            stopped = int((runs.status == "timeout").sum())
            raise RequestError(
                f"fitting {self.name} on {counted(len(runs), 'run')}",
                "none that ended has a time of a step, an epoch or a whole run"
                + (f"; {stopped:,} were stopped, and tell lower bounds alone" if stopped else ""),
                "give runs that ended ok, with step_time_s, samples_per_s, epoch_time_s or"
                " time_to_train_s",
            )
        names = self.names or candidate_names()
        chosen = tuple(Chosen.of(names, self.start, runs, quantity) for quantity in quantities)
        open_plans = 2 * int(states_plan(runs.table).sum()) < len(runs)
        return Auto(self.start, self.names, chosen, open_plans)

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer: of nobody."""
        return list(self.predict(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of n jobs, in the quantity that most runs time."""
        if not self.chosen:
            return replace(self.planner.predict(jobs), predictor=self.name)
        return self.chosen[0].predict(jobs)

    def every_quantity(self, jobs: Jobs) -> list[Forecasts]:
        """Return the forecasts of n jobs in each quantity that runs time, that of `predict` first."""
        return [chosen.predict(jobs) for chosen in self.chosen] or [self.predict(jobs)]

    @cached_property
    def planner(self) -> Predictor:
        """Physics, as these runs have calibrated it: who tells plans of one job apart."""
        for chosen in self.chosen:
            if ANALYTIC in chosen.members.fitted and ANALYTIC not in chosen.members.failed:
                return chosen.members.fitted[ANALYTIC]
        return started(ANALYTIC, PRIORS if self.start == PRIORS else "")

    @property
    def learned(self) -> tuple[Learned, ...]:
        """What runs said of each constant of physics; nothing where none of them spoke of physics."""
        if self.chosen and not self.fitted_runs:
            return ()
        return tuple(getattr(self.planner, "learned", ()))

    @property
    def fitted_runs(self) -> int:
        """How many runs have calibrated physics."""
        return int(getattr(self.planner, "fitted_runs", 0))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The choice in sentences: who, by what error, against whom, and who could not be fitted."""
        return tuple(words for chosen in self.chosen for words in reasons(chosen))

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """The choice as plain values; see `telling.verdicts`."""
        return [one for chosen in self.chosen for one in verdicts(chosen)]

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Members that `to_json` leaves out, as they have no JSON form."""
        return tuple(dict.fromkeys(name for chosen in self.chosen for name in unsaved(chosen)))

    @property
    def formulas(self) -> dict[str, str]:
        """The laws of the candidates that have any, by candidate and kind of job."""
        return {
            f"{name}: {kind}": text
            for chosen in self.chosen
            for name, one in chosen.members.fitted.items()
            for kind, text in getattr(one, "formulas", {}).items()
        }

    def to_json(self) -> str:
        """Return the members, each in its own JSON, and their trials, as JSON text; see `unsaved`."""
        return json.dumps({
            "predictor": self.name, "version": VERSION, "start": self.start, "names": self.names,
            "as_they_were_run": self.as_they_were_run,
            "chosen": [chosen_dict(chosen) for chosen in self.chosen],
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> Auto:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or it or a member is of another version.
        """

        def made(saved: Mapping[str, Any]) -> Auto:
            chosen = tuple(chosen_of(one) for one in saved["chosen"])
            names = tuple(map(str, saved["names"]))
            return Auto(str(saved["start"]), names, chosen, bool(saved["as_they_were_run"]))

        return read_saved(text, "a chosen model", VERSION, made)
