"""forerun suggest: the runs that improve the answers most, with price and reason; or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli import inputs
from forerun.cli import options as shared
from forerun.cli.flagging import fitted, flags_option
from forerun.cli.inputs import BUDGET, COUNT, DURATION, FILE, WHOLE
from forerun.cli.printing import echo
from forerun.cli.showing import Screen, small_dollars, waiting
from forerun.errors import RequestError
from forerun.units import counted, format_percent, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.suggesting import FittedAdvisor, Suggested
    from forerun.settings import Settings
    from forerun.tables import Table

_OF_WORKLOAD = ("clusters", *shared.MACHINES, "plan", "global_batch", *shared.CHANGES)


@click.command(cls=inputs.SeveralTables)
@click.argument("workload", required=False, shell_complete=shared.complete_workload)
@shared.candidate_options
@click.option("--candidates", type=FILE, metavar="JOBS.csv", help="Jobs that could be run next.")
@click.option("--asked", type=FILE, metavar="JOBS.csv", help="Jobs that matter (the candidates).")
@click.option(
    "--runs", type=FILE, multiple=True, metavar="RUNS.csv [...]",
    help=f"What was run already; the predictor learns from it first: {inputs.RUNS_OF}.",
)  # fmt: skip
@click.option(
    "--goal", type=click.Choice(["accuracy", "decision"]),
    help="accuracy: surer answers (the usual with --candidates); decision: a better choice (the"
    " usual with WORKLOAD).",
)  # fmt: skip
@click.option("--budget", type=BUDGET, help="What all runs may cost, in dollars (or as printed).")
@click.option(
    "--count", type=WHOLE,
    help="The most runs (what the budget pays for; without one 1, or of a law as many as it has terms).",
)  # fmt: skip
@click.option("--run-steps", type=WHOLE, help="Optimizer steps in a run (100, fewer of slow ones).")
@click.option(
    "--criterion", type=click.Choice(["V", "A", "D"]),
    help="Of designs, for predictors with linear features (ernest): V, least variance of the wanted"
    " answers (the default); A, of the parameters (as Ernest has it); D, least volume.",
)  # fmt: skip
@click.option(
    "--minimize", type=click.Choice(["time", "cost"]), default="cost", show_default=True,
    help="What the choice is by.",
)  # fmt: skip
@click.option("--deadline", type=DURATION, help="The chosen job must end within, e.g. 24h.")
@click.option("--times", type=COUNT, help="How often the chosen job will be run (1).")
@click.option("--predictor", help="A name from `forerun predictors`.")
@shared.model_option
@shared.start_option
@shared.length_options
@shared.market_options
@shared.workload_options
@shared.map_option
@shared.own_columns_option
@flags_option
@shared.catalog_option
@click.option("--out", type=FILE, metavar="NEXT.csv", help="Write the runs as rows of a table.")
@click.option("--campaign", type=FILE, metavar="NEXT.yaml", help="Write them for forerun profile.")
@click.option(
    "--entry", "entries", multiple=True, metavar="NAME=WHAT",
    help="With --campaign: what to train for a workload (package.module:callable or a script).",
)  # fmt: skip
@shared.json_option
def suggest(
    workload: str | None, candidates: Path | None, out: Path | None, campaign: Path | None,
    entries: tuple[str, ...], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """The next runs that improve the answers most for their price, with the reason of each.

    Of the jobs in --candidates; or, for a WORKLOAD, short runs on a few nodes of the clusters that
    are chosen among, as for recommend (--clusters, --devices, --exclude, --max-devices, --plan ...).
    Where no run is worth its price, it suggests none and prints why.

    With --runs and no --predictor, cross-validation chooses the predictor. Jobs that it cannot answer
    yet get first runs, designed by the terms of ernest. A predictor with linear features (ernest)
    gets an optimal design; for others, a run's value follows from how their errors are correlated. A
    price is the time of a run (--startup, or 3min on any machine, and --run-steps) x the row's price_usd_per_hour or the
    catalogue's; devices x hours where neither is known. --budget counts the unit that is printed.
    """
    from forerun.advisor.suggesting import campaign_text
    from forerun.catalog import load_catalog
    from forerun.tables import write_table

    settings = shared.settings_of(options)
    if (workload is None) == (candidates is None):
        found = f"{'both' if workload else 'neither'} of WORKLOAD and --candidates given"
        give = "give a workload (forerun suggest resnet50 --clusters ...), or --candidates JOBS.csv"
        raise RequestError("forerun suggest", found, give)
    names: Sequence[str] = _OF_WORKLOAD
    way, found = "--candidates", "the rows of the tables say that themselves"
    if workload is not None:
        names, way, found = ("asked",), "WORKLOAD", "a workload is asked for its recommendation"
    given = [f"--{name.replace('_', '-')}" for name in names if options.get(name)]
    if given:
        raise RequestError(f"{way} with {', '.join(given)}", found, "leave it out")
    runs = inputs.files_in(options["runs"], "--runs") if options["runs"] else []
    shared.check_flags(options["flags_file"], runs, "--runs")
    inputs.writable(out, inputs.TABLES)
    inputs.writable(campaign, inputs.YAML)
    example, budget = "--entry mlp=my_models:mlp, or own=train.py", options["budget"]
    trained = dict(inputs.pair("--entry", text, "NAME=WHAT", example) for text in entries)
    catalog_files = (*settings.catalog_files, *options["catalog_files"])
    if entries and campaign is None:
        raise RequestError("--entry", "no campaign is written", "add --campaign NEXT.yaml")
    with waiting("looks for the runs that say most"):
        suggested = _suggested(settings, workload, candidates, runs, options)
    if out is not None:
        write_table(suggested.table, out)
    if campaign is not None and len(suggested.table):
        most, catalog = math.inf if budget is None else budget, load_catalog(catalog_files)
        inputs.write_text(campaign, campaign_text(suggested, trained, catalog, campaign.stem, most))
    if as_json:
        shared.write_json("suggestion", _json(suggested, out))
        return
    _show(Screen(settings), suggested)
    if out is not None:
        echo(f"{counted(len(suggested.table), 'run')} written to {out}")
    if campaign is not None and len(suggested.table):
        echo(f"measure them: forerun profile {campaign}")


def _suggested(
    settings: Settings, workload: str | None, candidates: Path | None, files: list[Path],
    options: dict[str, Any],
) -> Suggested:  # fmt: skip
    from forerun.advisor import suggesting
    from forerun.domain.objective import Objective
    from forerun.tables import read_table

    question = shared.question_of(settings, options)
    names = ("budget", "count", "criterion", "minimize", "times", "run_steps")
    given = {name: options[name] for name in names} | {
        "goal": options["goal"] or (None if workload is None else "decision"),
        "startup_seconds": question["preemption"].startup_seconds,
        "deadline_seconds": options["deadline"],
        # Steps that are stated are made, however slow they are.
        "most_seconds": math.inf if options["run_steps"] else None,
        "length": question["length"], "market": question["market"],
    }  # fmt: skip
    asking = suggesting.SuggestOptions(
        **{name: value for name, value in given.items() if value is not None}
    )
    if candidates is not None:
        table = read_table(candidates)
        asked = None if options["asked"] is None else read_table(options["asked"])
        tables = None if asking.goal == "decision" else (table, table if asked is None else asked)
        who = _fitted_advisor(settings, files, options, tables)
        return suggesting.suggest_from_table(who, table, asked, asking)
    who = _fitted_advisor(settings, files, options, None)
    objective = Objective(
        aim=asking.minimize, deadline_seconds=options["deadline"],
        market=question.pop("market"), preemption=question.pop("preemption"),
    )  # fmt: skip
    asked_for = ("clusters", "plan", *shared.MACHINES)
    recommended = who.advisor.recommend(
        str(workload), objective=objective, max_devices=int(settings["max_devices"]),
        global_batches=options["global_batch"], **{name: options[name] for name in asked_for},
        **question,
    )  # fmt: skip
    return suggesting.suggest_for_workload(who, recommended, asking)


def _fitted_advisor(
    settings: Settings, files: list[Path], options: dict[str, Any],
    tables: tuple[Table, Table] | None,
) -> FittedAdvisor:  # fmt: skip
    """Return the advisor fitted to the runs; with (candidates, asked jobs), one that may lack answers."""
    from forerun.advisor import Advisor
    from forerun.advisor.given_runs import attempted_runs, runs_of
    from forerun.advisor.suggesting import FittedAdvisor, first_runs, why_unanswered
    from forerun.contracts import LinearPredictor

    flags = options.pop("flags_file")
    catalog_files = (*settings.catalog_files, *map(str, options["catalog_files"]))
    advisor = shared.advisor_of(settings, options)
    made, runs, failed = advisor.made, None, None
    named = settings.origins["predictor"] != "default" or bool(settings.text("model"))
    if not files and settings.text("model") and settings.origins["predictor"] != "flag":
        note = (
            "what the model was fitted to counts, but it was saved without the jobs that were run: give"
            " them with --runs too, or fit it again, so that none is suggested again"
        )
        return FittedAdvisor(advisor, None, made, [note] if made is None else [])
    if files:
        own = shared.own_columns_of(settings)
        runs = attempted_runs(runs_of(files, advisor.catalog, own))
        if not named:
            advisor = Advisor(catalog_files, "auto", None, shared.start_of(settings))
        try:
            advisor = fitted(advisor, files, flags, own_columns=own)
        except RequestError as error:
            failed = error
    who = FittedAdvisor(advisor, runs, made)
    if tables is not None:
        why = "" if failed is None else f"{failed.found}; {failed.next_step}"
        if failed is not None and isinstance(advisor.predictor, LinearPredictor):
            return who._replace(notes=[f"not fitted yet: {why}"])
        why = why or ("" if named else why_unanswered(advisor, tables[1]))
        if why and (first := first_runs(who, why, tables[0], catalog_files)) is not None:
            return first
    if failed is not None:
        raise failed
    return who


def _amount(value: float, unit: str) -> str:
    return small_dollars(value) if unit == "dollars" else f"{value:.3g} {unit}"


def _show(screen: Screen, found: Suggested) -> None:
    from forerun.advisor.suggesting import error_words

    suggestion, unit = found.suggestion, found.suggestion.unit
    screen.labelled([("now", found.chosen)])
    if suggestion.runs:
        screen.title(
            f"{counted(len(suggestion.runs), 'run')} of {counted(found.considered, 'candidate')},"
            f" {_amount(suggestion.price, unit)} in all"
        )
        steps, seconds = map(found.table.numbers, ("suggested_run_steps", "suggested_run_s"))
        rows = [
            (i + 1, found.labels[i], _amount(run.price, unit),
             "" if math.isnan(steps[i]) else f"{steps[i]:.0f}",
             "" if math.isnan(seconds[i]) else format_seconds(seconds[i]), found.reasons[i])
            for i, run in enumerate(suggestion.runs)
        ]  # fmt: skip
        screen.table(("", "run", "price", "steps", "time", "why"), rows)
    else:
        screen.title(f"no run: {suggestion.stop}")
    of = "the job chosen now" if suggestion.goal == "decision" else "what is asked"
    error = f"{error_words(suggestion.error)} now on {of}"
    share = format_percent(suggestion.efficiency)
    design = f"{share} as good as a bound that no runs for this budget can pass"
    screen.labelled([
        ("error", "" if math.isnan(suggestion.error) else error),
        ("design", "" if math.isnan(suggestion.efficiency) else design),
        ("by", suggestion.source),
    ])  # fmt: skip
    screen.items("assumptions", found.notes)


def _json(found: Suggested, out: Path | None) -> dict[str, Any]:
    from forerun.tables.table import iter_rows

    suggestion = found.suggestion
    runs = [
        {"order": i, "job": job, "price": run.price, "seconds": row.get("suggested_run_s"),
         "steps": row.get("suggested_run_steps"), "settles_of_chosen": run.of_chosen,
         "reason": reason, "gain": run.gain, "changes_choice": run.changes,
         "log_error_after": run.error, "tells": dict(run.tells), "row": row}
        for i, (job, run, reason, row) in enumerate(zip(
            found.labels, suggestion.runs, found.reasons, iter_rows(found.table), strict=True
        ), start=1)
    ]  # fmt: skip
    return {
        "predictor": found.predictor, "goal": suggestion.goal, "runs": runs,
        "price": suggestion.price, "price_unit": suggestion.unit, "considered": found.considered,
        "chosen_now": found.chosen or None, "stop": suggestion.stop or None,
        "log_error_now": suggestion.error, "design_efficiency": suggestion.efficiency,
        "source": suggestion.source, "assumptions": list(found.notes),
        **({} if out is None else {"out": str(out)}),
    }  # fmt: skip
