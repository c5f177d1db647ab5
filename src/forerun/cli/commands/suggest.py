"""forerun suggest: the next runs that teach most, with price and reason; or that none would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.completion import complete_clusters, complete_workload
from forerun.cli.flagging import flags_option
from forerun.cli.kinds import BUDGET, COUNT, DURATION, FILE, NAMES, TABLES, WHOLE, WHOLES, writable
from forerun.cli.options import (
    catalog_option,
    changes_of,
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
from forerun.cli.several import SeveralTables, files_in
from forerun.cli.suggested import show_suggestion, suggestion_json
from forerun.cli.taught import taught_by
from forerun.errors import RequestError
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.suggesting import Asking, Suggested
    from forerun.settings import Settings


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
    taught = taught_by(settings, files, options, tables)
    advisor, made = taught.advisor, taught.made
    found = suggest_from_table(
        advisor.predictor, advisor.catalog, table, taught.runs, asked, asking,
        None if made is None else made.repeated,
    )  # fmt: skip
    return replace(found, notes=(*taught.notes, *found.notes))


def _of_workload(
    settings: Settings, workload: str, files: list[Path], options: dict[str, Any]
) -> Suggested:
    from dataclasses import replace

    from forerun.advisor.suggesting_runs import suggest_for_workload
    from forerun.domain.objective import Objective

    asking = _asking(options, "decision")
    taught = taught_by(settings, files, options, None)
    advisor = taught.advisor
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
    answer = suggest_for_workload(advisor.predictor, advisor.catalog, found, taught.runs, asking)
    return replace(answer, notes=(*taught.notes, *answer.notes))
