"""Options that several commands share, the values that they make together, and shell completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from forerun import wire
from forerun.cli.flagging import fitted, flags_option
from forerun.cli.inputs import (
    BUDGET,
    COUNT,
    DOLLARS,
    DURATION,
    FILE,
    FROM_ZERO,
    GOODPUT,
    KEPT_RUNS,
    NAMES,
    PAUSE,
    TABLES,
    WHOLE,
    WHOLES,
    at_most_one,
    check_map,
    one_cluster,
    pair,
    writable,
)
from forerun.cli.printing import echo
from forerun.errors import ForerunError, RequestError
from forerun.settings import Settings, load_settings

if TYPE_CHECKING:
    from forerun.advisor import Advisor
    from forerun.cli.emitting import Emission
    from forerun.cli.remote import RemoteAdvisor
    from forerun.domain.workload import Length
    from forerun.tables import Runs

F = TypeVar("F", bound=Callable[..., Any])
STARTS = ("shipped", "priors")
CHANGES = ("seq_len", "image_size", "precision", "framework", "optimizer", "dataset",
           "dataset_size", "task", "lora_rank", "lora_targets")  # fmt: skip
_UNITS = ("steps", "samples", "tokens", "epochs")
MACHINES = ("providers", "devices", "exclude", "min_ram", "min_vcpus")
_SETTINGS = ("market", "region", "predictor", "model", "start", "confidence", "fit_confidence",
             "max_devices", "own_columns")  # fmt: skip
# Tables, by parameter.
_READ = ("table", "fit_files", "runs", "candidates", "asked", "known", "files")
_LAST = re.compile(r"(?:.*,)?(?:[0-9]+x){0,2}")


def write_json(kind: str, body: dict[str, Any], indent: int | None = 2) -> None:
    """Write an answer to stdout as JSON of a kind."""
    echo(wire.dumps({"schema": wire.SCHEMA, "kind": kind, **body}, indent))


def complete_workload(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # fmt: skip
    """Return the zoo's names that begin so; for a path the shell's own files."""
    if incomplete.startswith(("/", ".", "~")):
        return [CompletionItem(incomplete, type="file")]
    from forerun.workloads.zoo import zoo_names

    return _items("", incomplete, zoo_names())


def complete_cluster(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # fmt: skip
    """Return devices and machines behind the counts, and the names with commas, that are written."""
    from forerun.catalog import load_catalog

    before = _LAST.match(incomplete)[0]  # type: ignore[index]  # it matches nothing too
    try:
        catalog = load_catalog(load_settings().catalog_files)
    except ForerunError:  # a shell that completes is no place to mend a file of settings
        catalog = load_catalog()
    names = list(catalog.devices)
    if before.rpartition(",")[2].count("x") < 2:
        names += sorted({machine.name for machine in catalog.instances})
    usual = "1x" if param.name == "cluster" else ""
    return _items(before or usual, incomplete[len(before) :], names)


def _items(before: str, incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    wanted = incomplete.lower()
    return [CompletionItem(before + name) for name in names if name.lower().startswith(wanted)]


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator that adds several options, in the given order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


workload_options = together(
    click.option("--seq-len", type=WHOLE, help="Tokens in a sample."),
    click.option("--image-size", type=WHOLE, help="Pixels on a side."),
    click.option("--precision", help="fp64, fp32, tf32, fp16, bf16, fp8 or fp4."),
    click.option(
        "--framework", help="The software that runs it, e.g. fsdp or megatron; it limits the plans."
    ),
    click.option(
        "--optimizer", help="sgd, momentum, adam, adamw, lamb, adamw_8bit, paged_adamw_8bit ..."
    ),
    click.option("--dataset", help="The dataset's name."),
    click.option("--dataset-size", type=COUNT, help="Samples in one epoch."),
    click.option("--task", help="pretrain, finetune, lora, qlora or dpo."),
    click.option("--lora-rank", type=WHOLE, help="The rank of LoRA's adapters (16)."),
    click.option(
        "--lora-targets",
        help="What LoRA adapts: qv (usual of lora), all-linear (of qlora), attention, mlp, or names of"
        " projections with commas, e.g. q_proj,v_proj.",
    ),
)
seeing_options = together(
    click.option(
        "--plot", type=FILE, is_flag=False, flag_value="-", metavar="[FILE.png]",
        help="Draw the answer: as a PNG, SVG or PDF file, or without a file in the terminal.",
    ),
    click.option("--html", type=FILE, metavar="FILE.html", help="Write a self-contained page."),
)  # fmt: skip
length_options = together(
    click.option("--steps", type=COUNT, help="How long the job is, in optimizer steps."),
    click.option("--samples", type=COUNT, help="How long the job is, in samples."),
    click.option("--tokens", type=COUNT, help="How long the job is, in tokens, e.g. 15T."),
    click.option("--epochs", type=COUNT, help="How long the job is, in passes over the dataset."),
)
market_options = together(
    click.option("--region", help="The region whose prices count."),
    click.option("--market", help="Prices to use: on-demand, spot, or any (the cheaper)."),
    click.option("--spot", is_flag=True, help="The same as --market spot."),
    click.option("--preemption-rate", type=FROM_ZERO, help="Hourly losses of a spot node (0.05)."),
    click.option("--checkpoint-interval", type=DURATION, help="Between spot checkpoints (30min)."),
    click.option(
        "--goodput",
        type=GOODPUT,
        metavar="SHARE",
        help="The share of the wall time that is steps, e.g. 0.93; the rest is lost to failures,"
        " restarts, checkpoints and evaluation, by default at published rates for so many devices.",
    ),
    click.option(
        "--startup", type=PAUSE,
        help="Paid for before the first step, e.g. 10min; by default published times of a cloud's"
        " machines, 0 of plain devices, which are taken as your own, and 3min of a run that suggest prices.",
    ),
    click.option(
        "--least-billed", type=PAUSE,
        help="Billed of a machine at least, e.g. 1h; by default what its cloud bills (60 s mostly).",
    ),
)  # fmt: skip
candidate_options = together(
    click.option(
        "--clusters", "--cluster", "clusters", type=NAMES, shell_complete=complete_cluster, multiple=True,
        callback=lambda ctx, param, lists: tuple(name for names in lists for name in names) or None,
        help="Candidates, with commas or repeated: whole clusters, or devices and instances alone, whose number"
        " of nodes is then searched. By default the cheapest instance of each kind.",
    ),
    click.option("--providers", type=NAMES, help="Clouds to choose from, e.g. aws,gcp; all of them."),
    click.option(
        "--devices", type=NAMES,
        help="Devices to choose from: names, families, makers or kinds, e.g. h100,a100, amd, or tpu;"
        " cpu for machines without an accelerator.",
    ),
    click.option(
        "--exclude", type=NAMES,
        help="What not to use: devices as above, machines, clouds or regions, e.g. v100,vast,us-east-1.",
    ),
    click.option("--min-ram", metavar="SIZE", help="The least memory of a machine's host, e.g. 256GB."),
    click.option("--min-vcpus", type=WHOLE, help="The fewest vCPUs of a machine, e.g. 32."),
    click.option("--max-devices", type=WHOLE, help="The most devices of a searched cluster (512)."),
    click.option("--global-batch", type=WHOLES, help="Samples in a step; several with commas."),
    click.option("--plan", help="Plan fields to hold fixed, e.g. tp=8,zero_stage=1."),
)  # fmt: skip
limit_options = together(
    click.option("--deadline", type=DURATION, help="The run must end within, e.g. 24h or 1d12h."),
    click.option("--budget", type=BUDGET, help="The run must cost at most, in dollars, e.g. 5000."),
)
price_option = click.option("--price", type=DOLLARS, help="Dollars an hour, the whole cluster.")
own_columns_option = click.option(
    "--own-columns", metavar="NAMES",
    help="Columns of your own that are part of a configuration: auto (those that vary among runs that"
    " are equal otherwise), none, or names with commas.",
)  # fmt: skip
start_option = click.option(
    "--start", type=click.Choice(STARTS),
    help="What the predictor knows before any --fit: shipped, constants fitted to published runs"
    " (the default, where it has any), or priors, data sheets and papers alone.",
)  # fmt: skip
_map_option = click.option(
    "--map", "columns", multiple=True, metavar="'HEADER=COLUMN'",
    help="What a header of your own means, e.g. 'my batch=global_batch', in each table that is read (may be"
    " repeated); one that ends in ms, min, MiB and so on is converted.",
)  # fmt: skip


def map_option(command: F) -> F:
    """Add --map, which holds for every table that the command reads, and check it against their headers."""

    @wraps(command)
    def mapped(*arguments: Any, **options: Any) -> Any:
        texts = options.pop("columns")
        if not texts:
            return command(*arguments, **options)
        from forerun.tables.own_headers import headers_mean

        columns = dict(pair("--map", t, "HEADER=COLUMN", "'my batch=global_batch'") for t in texts)
        with headers_mean(columns):
            check_map(columns, (options.get(name) for name in _READ))
            return command(*arguments, **options)

    return _map_option(mapped)  # type: ignore[return-value]


store_option = click.option(
    "--store", "where", default="", metavar="STORE",
    help="An SQLite file, or postgresql://USER@HOST/DATABASE. Default: the setting `store`.",
)  # fmt: skip
log_options = together(
    click.option("--reader", default="", help="A log's format, where its content misleads."),
    click.option(
        "--pattern", default="", metavar="REGEX",
        help="For plain logs: an expression with named groups (step, step_time_ms, loss ...).",
    ),
)  # fmt: skip
force_option = click.option("--force", is_flag=True, help="Replace the file where there is one.")
model_option = click.option("--model", type=click.Path(), help="A file that `forerun fit` wrote.")
catalog_option = click.option(
    "--catalog", "catalog_files", type=FILE, multiple=True, metavar="FILE",
    help="Your own devices, machines and prices (may be repeated); a dataset's name for its device.",
)  # fmt: skip
predictor_option = click.option(
    "--predictor", metavar="NAME[:OPTION=VALUE]",
    help="A name from `forerun predictors`, with options where wanted: generic:mode=faithful."
    " `forerun predictors NAME` lists its options.",
)  # fmt: skip


def where_option(text: str) -> Callable[[F], F]:
    """Return the option --where; `text` is its help."""
    return click.option("--where", "conditions", multiple=True, metavar="CONDITION", help=f"{text} (may be repeated).")  # fmt: skip


def system_option(several: bool = False) -> Callable[[F], F]:
    """Return the option --system: the predictor of a published method, with its published settings."""
    return click.option(
        "--system", "systems" if several else "system", multiple=several, metavar="NAME",
        help="A published method from `forerun systems`: its predictor with its published settings"
        + (" (may be repeated)." if several else "."),
    )  # fmt: skip


predictor_options = together(
    predictor_option,
    system_option(),
    model_option,
    start_option,
    click.option(
        "--fit", "fit_files", type=FILE, multiple=True, metavar="RUNS.csv [...]",
        help=f"Measured runs that the predictor learns from first: files, {KEPT_RUNS}.",
    ),
    map_option,
    own_columns_option,
    flags_option,
    catalog_option,
)  # fmt: skip


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[f"forerun.{param.name}"] = value


# Of commands that `service` may answer.
server_options = together(
    click.option(
        "--server", metavar="URL", expose_value=False, callback=_remember,
        help="Ask a service (forerun serve) in place of this machine; '' for this machine (setting `server`).",
    ),
    click.option(
        "--token-file", metavar="FILE", expose_value=False, callback=_remember,
        help="A file with the token for it; FORERUN_TOKEN may hold the token itself.",
    ),
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="JSON, schema forerun/1.")


partitions_option = click.option(
    "--partitions", type=WHOLE,
    help="Devices over which each replica's layers are cut: all that can be, not only those that gain.",
)  # fmt: skip


def job_options(*own: Callable[[F], F], cluster_required: bool = False) -> Callable[[F], F]:
    """Return the options of a command about one job: its own behind plan and batch."""
    return together(
        click.option(
            "--cluster", "--clusters", "cluster", required=cluster_required, shell_complete=complete_cluster,
            multiple=True, callback=one_cluster,
            help="NODESxDEVICESxDEVICE or NODESxINSTANCE, e.g. 1x8xa100-sxm-80gb.",
        ),
        click.option("--plan", help="Plan fields to fix, e.g. tp=2,pp=4; the search chooses the rest."),
        click.option("--global-batch", type=WHOLE, help="Samples in an optimizer step."),
        click.option("--micro-batch", type=WHOLE, help="Samples a device does in one pass."),
        *own,
        length_options,
        price_option,
        limit_options,
        market_options,
        workload_options,
        predictor_options,
    )  # fmt: skip


def plan_of(options: dict[str, Any]) -> str | None:
    """Take the plan out of a command's options, with its `--partitions`."""
    plan, parts = options.pop("plan"), options.pop("partitions")
    return plan if parts is None else ",".join(filter(None, (plan, f"partitions={parts}")))


def settings_of(options: dict[str, Any]) -> Settings:
    """Take the settings out of a command's options."""
    system, named = options.pop("system", None), options.get("predictor")
    if system is not None:
        from forerun.systems.recipe import predictor_spec

        both = {f"--system {system}": 1, f"--predictor {named}": named}
        at_most_one("they name two predictors", both)
        options["predictor"] = predictor_spec(system)
    if options.pop("spot", False):
        market = options.get("market") or "spot"
        at_most_one("they name two markets", {"--spot": 1, f"--market {market}": market != "spot"})
        options["market"] = "spot"
    return load_settings({name: options.pop(name, None) for name in _SETTINGS})


def advisor_of(settings: Settings, options: dict[str, Any], choose: bool = False) -> Advisor:
    """Take the catalogue and runs files out of the options, and return an advisor.

    `choose`: with runs to learn from and no predictor named anywhere, the runs choose who answers.
    """
    from forerun.advisor import Advisor

    files = (*settings.catalog_files, *map(str, options.pop("catalog_files", ())))
    model = settings.text("model")
    for name in ("predictor", "start"):
        if model and settings.origins[name] == "flag":
            flagged = settings.origins["model"] == "flag"
            both = {f"--{name} {settings[name]}": 1, f"--model {model}": flagged}
            at_most_one("a model file names its own predictor, with its own constants", both)
            model = ""
    fit_files, flags_file = options.pop("fit_files", ()), options.pop("flags_file", None)
    name = settings.text("predictor")
    if choose and fit_files and settings.origins["predictor"] == "default":
        name = "auto"
    advisor = Advisor(files, name, model or None, start_of(settings))
    check_flags(flags_file, fit_files, "--fit")
    own = own_columns_of(settings)
    return fitted(advisor, fit_files, flags_file, own_columns=own) if fit_files else advisor


def answering(settings: Settings, options: dict[str, Any], choose: bool = False) -> Advisor:
    """Return who answers: an advisor as `advisor_of`, or the service that the command or a setting names."""
    answers: Any = remote(settings, options) or advisor_of(settings, options, choose)
    return answers  # type: ignore[no-any-return]


def remote(settings: Settings, options: dict[str, Any], *taken: str) -> RemoteAdvisor | None:
    """Return the service that the running command asks, None for this machine. taken: options that it takes here.

    Raises RequestError where another one of this machine is given.
    """
    if (client := service()) is not None:
        from forerun.cli.remote import refuse_local

        refuse_local(settings, options, taken)
        if settings.origins.get("model") == "flag":
            client.ask_model(settings.text("model"))
    return client


def service() -> RemoteAdvisor | None:
    """Return the service that the running command asks, None for this machine. Raises RequestError."""
    context = click.get_current_context()
    meta = context.meta
    if "forerun.service" in meta:
        client: RemoteAdvisor = meta["forerun.service"]
        return client
    settings = load_settings({n: meta.get(f"forerun.{n}") for n in ("server", "token_file")})
    if not settings["server"]:
        return None
    from forerun.cli.remote import client_at

    client = meta["forerun.service"] = client_at(settings)
    context.call_on_close(client.close)
    return client


def own_columns_of(settings: Settings) -> str:
    """Return the own columns that the command line names, "" where it leaves them to the setting."""
    flagged = settings.origins["own_columns"] == "flag"
    return settings.text("own_columns") if flagged else ""


def check_flags(to: Path | None, runs: Sequence[Path], option: str) -> None:
    """Check that there are runs to flag, and that the file of flags can be written."""
    if to is not None and not runs:
        found = "no runs are given that could be flagged"
        raise RequestError(f"--flags {to}", found, f"give {option} too")
    writable(to, TABLES)


def runs_by_table(
    files: Sequence[Path], settings: Settings, options: dict[str, Any], where: Sequence[str] = ()
) -> dict[str, Runs]:
    """Return the runs that meet the conditions by the stem of their file; own columns as `settings` say."""
    from forerun.advisor.given_runs import runs_of
    from forerun.catalog import load_catalog
    from forerun.evaluate import parse_condition, rows_where

    conditions = [parse_condition(text) for text in where]
    catalog = load_catalog((*settings.catalog_files, *options["catalog_files"]))
    found: dict[str, Runs] = {}
    for path in files:
        if path.stem in found:
            twin = f"another table is named {path.stem} too"
            raise RequestError(f"evaluating {path}", twin, "rename one file")
        runs = runs_of([path], catalog, own_columns_of(settings))
        found[path.stem] = rows_where(runs, conditions, path.stem)
    return found


def known_runs(options: dict[str, Any]) -> Runs | None:
    """Return the runs of --known, None where it is not given."""
    if options["known"] is None:
        return None
    return next(iter(runs_by_table([options["known"]], load_settings(), options).values()))


def start_of(settings: Settings) -> str:
    """Return the start to ask for; "" where shipped constants are taken only if there are any."""
    start = settings.text("start")
    return "" if start == "shipped" and settings.origins["start"] != "flag" else start


def length_of(options: dict[str, Any]) -> Length | None:
    """Take the length out of the options; None where none is given."""
    given = {unit: value for unit in _UNITS if (value := options.pop(unit, None)) is not None}
    at_most_one("a job has one length", {f"--{unit}": True for unit in given})
    if not given:
        return None
    from forerun.domain.workload import Length

    return Length(*given.popitem())


def question_of(settings: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """Take out of the options what every question about a job has, by the advisor's names."""
    from forerun.domain.objective import Preemption

    names = {
        "preemption_rate": "rate_per_node_hour", "checkpoint_interval": "checkpoint_interval_seconds",
        "goodput": "goodput", "startup": "startup_seconds", "least_billed": "least_billed_seconds",
    }  # fmt: skip
    given = {field: options.pop(name, None) for name, field in names.items()}
    preemption = Preemption(**{field: value for field, value in given.items() if value is not None})
    return {
        "length": length_of(options), "preemption": preemption, "market": settings.text("market"),
        "region": settings.text("region"),
        **{name: options.pop(name, None) for name in CHANGES},
    }  # fmt: skip


def emission_of(options: dict[str, Any], outputs: Mapping[str, Any]) -> Emission | None:
    """Take the options of a launch configuration out of a command's, as `emitting.emission`; None for none."""
    given = {name: options.pop(name) for name in ("emit", "emit_to", "script", "force")}
    if not any(given.values()):
        return None
    from forerun.cli.emitting import emission

    return emission(given, options, outputs)
