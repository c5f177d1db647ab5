"""forerun suggest: the next runs that teach most, with price and reason; or that none would.

Suggested: the next runs as a table for a person, and as JSON.

FittedAdvisor: who answers which next runs to make: whoever learned from the runs that are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.flagging import flags_option
from forerun.cli.inputs import (
    BUDGET,
    COUNT,
    DURATION,
    FILE,
    NAMES,
    TABLES,
    WHOLE,
    WHOLES,
    SeveralTables,
    files_in,
    writable,
)
from forerun.cli.options import (
    catalog_option,
    changes_of,
    complete_clusters,
    complete_workload,
    json_option,
    length_of,
    length_options,
    market_options,
    preemption_of,
    settings_of,
    start_option,
    workload_options,
)
from forerun.cli.screen import Screen
from forerun.errors import RequestError
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.suggesting import Asking, Suggested
    from forerun.settings import Settings

from typing import TYPE_CHECKING

from forerun.units import format_dollars, format_percent, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.suggesting import Suggested

from typing import TYPE_CHECKING, NamedTuple

from forerun.cli.flagging import fitted
from forerun.cli.options import advisor_of, start_of

if TYPE_CHECKING:
    from forerun.advisor import Advisor
    from forerun.advisor.given_runs import MadeRuns
    from forerun.settings import Settings
    from forerun.tables import Runs, Table


class FittedAdvisor(NamedTuple):
    """Who answers, from what.

    Attributes:
        advisor: that learned. runs: those given that tell anything.
        notes: how it was fitted.
        made: which jobs a saved model was fitted to.
    """

    advisor: Advisor
    runs: Runs | None = None
    notes: Sequence[str] = ()
    made: MadeRuns | None = None


def fitted_advisor(
    settings: Settings,
    files: list[Path],
    options: dict[str, Any],
    tables: tuple[Table, Table] | None,
) -> FittedAdvisor:
    """Return the advisor that learned from runs, the runs, and notes.

    Where no predictor was named, the runs choose who answers, as for `predict --fit`. Where nobody
    can answer yet, the first runs are designed: that needs no answer.

    Args:
        settings, options: of the command. files: of runs.
        tables: candidates, and jobs whose answers matter; None where answers are needed.

    Raises:
        RequestError: the runs cannot teach the predictor, and it cannot do without.
    """
    from forerun.advisor import Advisor
    from forerun.advisor.given_runs import attempted_runs, runs_of
    from forerun.advisor.suggesting import (
        first_runs,
        reason_of,
        saved_words,
        why_unanswered,
    )

    flags, own = options.pop("flags_file"), map(str, options["catalog_files"])
    catalog_files = (*settings.catalog_files, *own)
    before = advisor_of(settings, options)
    named = settings.origins["predictor"] != "default" or bool(settings.text("model"))
    made = before.made
    if not files:
        if settings.text("model") and settings.origins["predictor"] != "flag":
            return FittedAdvisor(before, None, saved_words(before.predictor, made), made)
        if named or tables is None or not (why := why_unanswered(before, tables[1])):
            return FittedAdvisor(before)
        found = first_runs(catalog_files, before.predictor.name, why, tables[0])
        return FittedAdvisor(before) if found is None else FittedAdvisor(found[0], None, found[1])
    runs = attempted_runs(runs_of(files, before.catalog))
    advisor = before if named else Advisor(catalog_files, "auto", None, start_of(settings))
    try:
        learned = fitted(advisor, files, flags)
    except RequestError as error:
        if tables is None:
            raise
        if hasattr(advisor.predictor, "linear_features"):
            return FittedAdvisor(advisor, runs, [f"not fitted yet: {reason_of(error)}"], made)
        found = first_runs(catalog_files, advisor.predictor.name, reason_of(error), tables[0])
        if found is None:
            raise
        return FittedAdvisor(found[0], runs, found[1], made)
    if named or tables is None or not (why := why_unanswered(learned, tables[1])):
        return FittedAdvisor(learned, runs, made=made)
    found = first_runs(catalog_files, learned.predictor.name, why, tables[0])
    if found is None:
        return FittedAdvisor(learned, runs, made=made)
    return FittedAdvisor(found[0], runs, found[1], made)


# Below a tenth a price has more digits than cents; what is free counts as next to nothing.
_CENTS, _NOTHING = 0.1, 1e-6


def _amount(value: float, unit: str) -> str:
    from forerun.search.suggestion import SMALLEST_RUNS

    if unit != "dollars":
        one = unit == SMALLEST_RUNS and f"{value:.3g}" == "1"
        return f"{value:.3g} {unit.removesuffix('s') if one else unit}"
    return format_dollars(value) if value >= _CENTS or value < _NOTHING else f"${value:.1g}"


def show_suggestion(screen: Screen, found: Suggested) -> None:
    """Write next runs for a person."""
    suggestion = found.suggestion
    unit = suggestion.unit
    if found.chosen:
        screen.line(f"now     {found.chosen}")
    if not suggestion.runs:
        screen.title(f"no run: {suggestion.stop}")
    else:
        screen.title(
            f"{counted(len(suggestion.runs), 'run')} of {counted(found.considered, 'candidate')},"
            f" {_amount(suggestion.price, unit)} in all"
        )
        counts = found.table.numbers("suggested_run_steps")
        differ = len(set(counts[counts == counts].tolist())) > 1
        steps = [(f"{count:.0f}",) if differ else () for count in counts.tolist()]
        headers = ("", "run", "price", *(["steps"] if differ else []), "time", "why")
        rows = [
            (str(i + 1), found.labels[i], _amount(run.price, unit), *steps[i],
             "" if run.seconds != run.seconds else format_seconds(run.seconds), found.reasons[i])
            for i, run in enumerate(suggestion.runs)
        ]  # fmt: skip
        screen.table(headers, rows)
    if suggestion.error == suggestion.error:
        from forerun.advisor.suggesting import error_words

        of = "the job chosen now" if suggestion.goal == "decision" else "what is asked"
        screen.line(f"error   {error_words(suggestion.error)} now on {of}")
    if suggestion.efficiency == suggestion.efficiency:
        screen.line(
            f"design  {format_percent(suggestion.efficiency)} as good as a bound that no runs for"
            " this budget can pass"
        )
    screen.line(f"by      {suggestion.source}")
    screen.items("assumptions", found.notes)


def suggestion_json(found: Suggested, out: Path | None) -> dict[str, Any]:
    """Return next runs in the wire's shape."""
    from forerun.tables.table import iter_rows

    suggestion = found.suggestion
    runs = [
        {
            "order": i + 1,
            "job": found.labels[i],
            "price": run.price,
            "seconds": run.seconds,
            "steps": row.get("suggested_run_steps"),
            "settles_of_chosen": run.of_chosen,
            "reason": found.reasons[i],
            "gain": run.gain,
            "changes_choice": run.changes,
            "log_error_after": run.error,
            "tells": dict(run.tells),
            "row": row,
        }
        for i, (run, row) in enumerate(zip(suggestion.runs, iter_rows(found.table), strict=True))
    ]
    return {
        "schema": wire.SCHEMA,
        "kind": "suggestion",
        "predictor": found.predictor,
        "goal": suggestion.goal,
        "runs": runs,
        "price": suggestion.price,
        "price_unit": suggestion.unit,
        "considered": found.considered,
        "chosen_now": found.chosen or None,
        "stop": suggestion.stop or None,
        "log_error_now": suggestion.error,
        "design_efficiency": suggestion.efficiency,
        "source": suggestion.source,
        "assumptions": list(found.notes),
        **({} if out is None else {"out": str(out)}),
    }


@click.command(cls=SeveralTables)
@click.argument("workload", required=False, shell_complete=complete_workload)
@click.option(
    "--clusters", type=NAMES, shell_complete=complete_clusters,
    help="With WORKLOAD: clusters, devices or instances to choose among, as for recommend.",
)  # fmt: skip
@click.option("--providers", type=NAMES, help="With WORKLOAD: clouds to choose from.")
@click.option("--max-devices", type=WHOLE, help="With WORKLOAD: the largest cluster (512).")
@click.option("--global-batch", type=WHOLES, help="With WORKLOAD: samples in a step.")
@click.option("--plan", help="With WORKLOAD: plan fields to hold fixed, e.g. tp=8.")
@click.option("--candidates", type=FILE, metavar="JOBS.csv", help="Jobs that could be run next.")
@click.option(
    "--asked", type=FILE, metavar="JOBS.csv",
    help="Jobs whose answers matter; by default the candidates.",
)  # fmt: skip
@click.option(
    "--runs", type=FILE, multiple=True, metavar="RUNS.csv [...]",
    help="What was run already; the predictor learns from it first.",
)  # fmt: skip
@click.option(
    "--goal", type=click.Choice(["accuracy", "decision"]),
    help="accuracy: surer answers (the usual with --candidates); decision: a better choice (the"
    " usual with WORKLOAD).",
)  # fmt: skip
@click.option("--budget", type=BUDGET, help="What all runs may cost, in dollars (or as printed).")
@click.option(
    "--count",
    type=WHOLE,
    help="The most runs (what the budget pays for; without one 1, or of a law as many as it has terms).",
)
@click.option(
    "--run-steps", type=WHOLE, help="Optimizer steps in one run (100, fewer of slow ones)."
)
@click.option("--startup", type=DURATION, help="Paid for before a run's first step (3min).")
@click.option(
    "--criterion", type=click.Choice(["V", "A", "D"]),
    help="Of designs for laws linear in their parameters: least variance of the answers asked (the"
    " usual), of the parameters (as Ernest has it), or least volume.",
)  # fmt: skip
@click.option(
    "--minimize", type=click.Choice(["time", "cost"]), default="cost", show_default=True,
    help="What the choice is by.",
)  # fmt: skip
@click.option("--deadline", type=DURATION, help="The chosen job must end within, e.g. 24h.")
@click.option("--times", type=COUNT, help="How often the chosen job will be run (1).")
@click.option("--predictor", help="A name from `forerun predictors`.")
@click.option("--model", type=FILE, help="A model file that `forerun fit` wrote.")
@start_option
@length_options
@market_options
@workload_options
@flags_option
@catalog_option
@click.option("--out", type=FILE, metavar="NEXT.csv", help="Write the runs as rows of a table.")
@click.option(
    "--campaign", type=FILE, metavar="NEXT.yaml",
    help="Write the runs as a campaign, for forerun profile.",
)  # fmt: skip
@click.option(
    "--entry", "entries", multiple=True, metavar="NAME=WHAT",
    help="With --campaign: what to train for a workload (package.module:callable or a script).",
)  # fmt: skip
@json_option
def suggest(
    workload: str | None, candidates: Path | None, out: Path | None, campaign: Path | None,
    entries: tuple[str, ...], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """The next runs that teach most for their price, with the reason of each.

    Of the jobs in --candidates; or, for a WORKLOAD, short runs on a few nodes of the clusters that
    are chosen among. Where no run would change what is chosen, or none is worth its price, that is
    said, and none is suggested.

    With --runs and no --predictor, the runs choose who answers, as for predict --fit. Jobs that
    nobody answers yet get first runs, designed by the terms of ernest (devices and size).

    A law that is linear in its parameters (ernest) gets an optimal design, with no run made yet too;
    of others, what a run would tell follows from how their errors go together. A price is the time of a run
    (its start and --run-steps) x the row's price_usd_per_hour or the catalogue's; devices x hours
    where neither is known. --budget counts the unit that is printed.
    """
    from forerun.advisor.suggesting_campaign import entries_of

    settings = settings_of(options)
    if (workload is None) == (candidates is None):
        found = "both" if workload else "neither"
        raise RequestError(
            "forerun suggest", f"{found} of WORKLOAD and --candidates given",
            "give a workload (forerun suggest resnet50 --clusters ...), or --candidates JOBS.csv",
        )  # fmt: skip
    _check_options(workload, options)
    runs = files_in(options["runs"], "--runs") if options["runs"] else []
    read = (*runs, *options["catalog_files"], *filter(None, (candidates, options["asked"])))
    writable(out, "writing", TABLES, read)
    writable(campaign, "writing", (".yaml", ".yml"), read)
    trained, budget, own = entries_of(entries), options["budget"], options["catalog_files"]
    if entries and campaign is None:
        raise RequestError("--entry", "no campaign is written", "add --campaign NEXT.yaml")
    if workload is None:
        assert candidates is not None
        found_runs = _of_table(settings, candidates, runs, options)
    else:
        found_runs = _of_workload(settings, workload, runs, options)
    if out is not None:
        from forerun.tables import write_table

        write_table(found_runs.table, out)
    if campaign is not None and len(found_runs.table):
        _write_campaign(campaign, found_runs, trained, budget, (*settings.catalog_files, *own))
    if as_json:
        click.echo(wire.dumps(suggestion_json(found_runs, out)))
    else:
        show_suggestion(Screen(settings), found_runs)
        if out is not None:
            click.echo(f"{counted(len(found_runs.table), 'run')} written to {out}")
        if campaign is not None and len(found_runs.table):
            click.echo(f"measure them: forerun profile {campaign}")


def _write_campaign(
    path: Path, found: Suggested, entries: dict[str, str], budget: float | None,
    catalog_files: Sequence[str | Path],
) -> None:  # fmt: skip
    """Write suggested runs as a campaign. Raises RequestError where no campaign can make them."""
    from forerun.advisor.suggesting_campaign import campaign_text
    from forerun.catalog import load_catalog
    from forerun.tables.files import write_whole

    most = float("inf") if budget is None else budget
    text = campaign_text(found, entries, load_catalog(catalog_files), path.stem, most)
    write_whole(path, lambda name: _write(name, text))


def _write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")


_OF_WORKLOAD = ("clusters", "providers", "plan", "global_batch", "seq_len", "image_size", "precision",
                "framework", "optimizer", "dataset", "dataset_size", "task")  # fmt: skip


def _check_options(workload: str | None, options: dict[str, Any]) -> None:
    """Refuse options of the other way to ask."""
    names = _OF_WORKLOAD if workload is None else ("asked",)
    given = [f"--{name.replace('_', '-')}" for name in names if options.get(name)]
    if given:
        way = "--candidates" if workload is None else "WORKLOAD"
        raise RequestError(
            f"{way} with {', '.join(given)}",
            "the rows of the tables say that themselves" if workload is None
            else "what is asked of a workload is its recommendation",
            "leave it out",
        )  # fmt: skip


def _asking(options: dict[str, Any], goal: str) -> Asking:
    from forerun.advisor.suggesting import MOST_SECONDS, RUN_STEPS, STARTUP_SECONDS, Asking

    budget, deadline = options.pop("budget"), options.pop("deadline")
    startup, steps = options.pop("startup"), options.pop("run_steps")
    return Asking(
        budget=float("inf") if budget is None else budget,
        count=options.pop("count"),
        goal=options.pop("goal") or goal,
        criterion=options.pop("criterion") or "",
        run_steps=steps or RUN_STEPS,
        # Who says how many steps means it, however slow they are.
        most_seconds=float("inf") if steps else MOST_SECONDS,
        startup_seconds=STARTUP_SECONDS if startup is None else startup,
        minimize=options.pop("minimize"),
        deadline_seconds=float("inf") if deadline is None else deadline,
        times=options.pop("times") or 1.0,
        length=length_of(options),
    )


def _of_table(
    settings: Settings, candidates: Path, files: list[Path], options: dict[str, Any]
) -> Suggested:
    from dataclasses import replace

    from forerun.advisor.suggesting import suggest_from_table
    from forerun.tables import read_table

    asking = replace(_asking(options, "accuracy"), market=settings.text("market"))
    table = read_table(candidates)
    asked = None if options["asked"] is None else read_table(options["asked"])
    tables = None if asking.goal == "decision" else (table, table if asked is None else asked)
    fitted = fitted_advisor(settings, files, options, tables)
    advisor, made = fitted.advisor, fitted.made
    found = suggest_from_table(
        advisor.predictor, advisor.catalog, table, fitted.runs, asked, asking,
        None if made is None else made.repeated,
    )  # fmt: skip
    return replace(found, notes=(*fitted.notes, *found.notes))


def _of_workload(
    settings: Settings, workload: str, files: list[Path], options: dict[str, Any]
) -> Suggested:
    from dataclasses import replace

    from forerun.advisor.suggesting_runs import suggest_for_workload
    from forerun.domain.objective import Objective

    asking = _asking(options, "decision")
    fitted = fitted_advisor(settings, files, options, None)
    advisor = fitted.advisor
    deadline = asking.deadline_seconds
    found = advisor.recommend(
        workload,
        clusters=options.pop("clusters"),
        providers=options.pop("providers"),
        max_devices=int(settings["max_devices"]),
        objective=Objective(
            aim=asking.minimize,
            deadline_seconds=None if deadline == float("inf") else deadline,
            market=settings.text("market"),
            preemption=preemption_of(options),
        ),
        length=asking.length,
        plan=options.pop("plan"),
        global_batches=options.pop("global_batch"),
        region=settings.text("region"),
        **changes_of(options),
    )
    answer = suggest_for_workload(advisor.predictor, advisor.catalog, found, fitted.runs, asking)
    return replace(answer, notes=(*fitted.notes, *answer.notes))
