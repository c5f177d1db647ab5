"""forerun suggest: the runs that improve the answers most, with price and reason; or none."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli import inputs
from forerun.cli import options as shared
from forerun.cli.flagging import fitted, flags_option
from forerun.cli.inputs import BUDGET, COUNT, DURATION, FILE, WHOLE
from forerun.cli.printing import echo
from forerun.cli.showing import Screen, small_dollars, waiting
from forerun.errors import RequestError
from forerun.units import counted, format_percent, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.suggesting import Suggested
    from forerun.settings import Settings


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
@shared.server_options
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
    from forerun.advisor.next_runs import check_asked
    from forerun.advisor.suggesting import campaign_text
    from forerun.catalog import load_catalog
    from forerun.client import answered_rows
    from forerun.tables import write_table

    settings = shared.settings_of(options)
    check_asked(workload, candidates is not None, options)
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
        suggested, body = _suggested(settings, workload, candidates, runs, campaign, options)
    table = suggested.table if suggested else answered_rows([run["row"] for run in body["runs"]])
    if out is not None:
        write_table(table, out)
    if campaign is not None and suggested and len(table):
        most, catalog = math.inf if budget is None else budget, load_catalog(catalog_files)
        inputs.write_text(campaign, campaign_text(suggested, trained, catalog, campaign.stem, most))
    if as_json:
        shared.write_json("suggestion", {**body, **({} if out is None else {"out": str(out)})})
        return
    _show(Screen(settings), body)
    if out is not None:
        echo(f"{counted(len(table), 'run')} written to {out}")
    if campaign is not None and len(table):
        echo(f"measure them: forerun profile {campaign}")


def _suggested(
    settings: Settings, workload: str | None, candidates: Path | None, files: list[Path], campaign: Path | None,
    options: dict[str, Any],
) -> tuple[Suggested | None, dict[str, Any]]:  # fmt: skip
    """Return what is suggested, as an object (None where a service answers) and as JSON."""
    from forerun.advisor.next_runs import STATED, fitted_advisor, next_runs, suggestion_json
    from forerun.tables import read_table

    client = shared.remote(settings, {**options, "campaign": campaign}, "predictor", "own_columns")
    question, deadline = shared.question_of(settings, options), options["deadline"]
    if workload is not None:
        question |= {name: options[name] for name in ("clusters", "plan", *shared.MACHINES)}
        question["global_batches"] = options["global_batch"]
        question["max_devices"] = int(settings["max_devices"])
    if client is not None:
        from forerun.cli.remote import own_of, sent_runs

        sent = sent_runs(files) if files else {}
        question["where"] = sent.get("where")
        question |= {name: options[name] for name in STATED} | own_of(settings)
        question["deadline"] = None if deadline is None else f"{deadline!r}s"
        return None, client.suggest(workload, candidates, options["asked"], sent.get("columns"), **question)  # fmt: skip
    flags, own = options.pop("flags_file"), shared.own_columns_of(settings)
    advisor, origin = shared.advisor_of(settings, options), settings.origins["predictor"]
    named = "predictor" if origin != "default" else ""
    who = partial(
        fitted_advisor, advisor, files, "model" if settings.text("model") and origin != "flag" else named,
        lambda one: fitted(one, files, flags, own_columns=own), own, shared.start_of(settings),
    )  # fmt: skip
    tables = [None if f is None else read_table(f) for f in (candidates, options["asked"])]
    found = next_runs(who, workload, tables, options, deadline, **question)
    return found, wire.clean(suggestion_json(found))


def _amount(value: float, unit: str) -> str:
    return small_dollars(value) if unit == "dollars" else f"{value:.3g} {unit}"


def _show(screen: Screen, found: dict[str, Any]) -> None:
    """Write the answer in JSON for a person."""
    from forerun.advisor.suggesting import error_words

    runs, unit = found["runs"], found["price_unit"]
    screen.labelled([("now", found["chosen_now"] or "")])
    if runs:
        screen.title(
            f"{counted(len(runs), 'run')} of {counted(found['considered'], 'candidate')},"
            f" {_amount(found['price'], unit)} in all"
        )
        rows = [
            (run["order"], run["job"], _amount(run["price"], unit), "" if run["steps"] is None else f"{run['steps']:.0f}",
             "" if run["seconds"] is None else format_seconds(run["seconds"]), run["reason"])
            for run in runs
        ]  # fmt: skip
        screen.table(("", "run", "price", "steps", "time", "why"), rows)
    else:
        screen.title(f"no run: {found['stop']}")
    of = "the job chosen now" if found["goal"] == "decision" else "what is asked"
    error, share = found["log_error_now"], found["design_efficiency"]
    screen.labelled([
        ("error", "" if error is None else f"{error_words(error)} now on {of}"),
        ("design", "" if share is None else f"{format_percent(share)} as good as a bound that no runs for this budget can pass"),
        ("by", found["source"]),
    ])  # fmt: skip
    screen.items("assumptions", found["assumptions"])
