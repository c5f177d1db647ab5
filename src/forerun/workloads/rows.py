"""Rows of the runs table become Jobs and Runs; each distinct workload and cluster is resolved once.

docs/tables.md says what blank plan cells mean. Where all three are given, the micro-batches of a
step are global_batch / (micro_batch x dp), whatever grad_accum says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray
from forerun.catalog.frameworks import stated_fields
from forerun.domain import plan
from forerun.domain.forecast import is_none
from forerun.domain.hardware import Cluster, Device
from forerun.domain.job import refuse_quantized
from forerun.domain.workload import Workload
from forerun.errors import ForerunError, RequestError, one_of
from forerun.tables import COLUMNS, Jobs, Runs, Table

if TYPE_CHECKING:
    from forerun.catalog import Catalog

Reasons = NDArray[np.object_]
WorkloadReader = Callable[[Mapping[str, Any]], "Workload | str"]

CLUSTER_COLUMNS = (
    "device", "instance_type", "cluster", "nodes", "devices", "devices_per_node", "placement",
    "interconnect", "node_gbps", "price_usd_per_hour",
)  # fmt: skip
_OF_CLUSTER = ("device", "instance_type", "interconnect", "node_gbps", "price_usd_per_hour")
_COUNTS = ("nodes", "devices_per_node", "devices")
NO_BATCH = "no batch size; fill global_batch, or micro_batch with dp and grad_accum"
NO_DP = "devices is blank, so dp cannot be derived; fill devices or dp"
_NO_DEVICE = "the device is not stated; fill device with a catalogue id"
_NO_COUNT = "how many devices is not stated; fill devices"
_NO_DEVICE_NOR_COUNT = (
    "neither the device nor how many is stated; fill device and devices, or cluster"
    " (as 4x8xh100-sxm-80gb)"
)
_LEAST_GBPS, _MOST_GBPS = 1e-6, 1e6
_SAME_RATE = 0.05  # a share: texts round rates
_LARGEST = 10_000_000  # devices: beyond any machine
LARGEST = 2**31 - 1
# Frameworks whose tensor parallelism splits sequences too, unless a row states otherwise.
_SPLITS_SEQUENCES = ("nanotron", "torchtitan", "megatron-bridge")
# Frameworks whose recipes deal the optimizer's states to the replicas.
_SHARDS_STATES = ("nemo", "megatron-bridge")
_DEGREES = ("tp", "pp", "cp", "ep", "vpp", "partitions")


def jobs_from_table(table: Table, catalog: Catalog, read: WorkloadReader | None = None) -> Jobs:
    """Return the n rows of a table as n jobs, each with its reason where it cannot be one; labels: this table.

    A row never raises: an unknown workload or device leaves its reason in `workload_problem` or
    `cluster_problem` and the index -1, an unreadable or illegal plan in `plan_problem`. `read`
    returns the workload of a row's cells.
    """
    from forerun.workloads.columns import WORKLOAD_COLUMNS, workload_from_columns

    labels, (table, text_problems) = table, _with_plan_fields(table)
    workloads, index, workload_problems = _workloads(
        table, tuple(WORKLOAD_COLUMNS), read or workload_from_columns
    )
    if table.problems is not None:  # a row with a cell that could not be read is no job
        unread = ~is_none(table.problems)
        workload_problems = np.where(unread, table.problems, workload_problems)
        index = np.where(unread, -1, index).astype(np.int32)
    clusters, cluster_index, cluster_problems, devices = _clusters(table, catalog)
    for w, workload in enumerate(workloads):  # some devices cannot hold weights in 4 bits
        for c, cluster in enumerate(clusters if workload.graph.quantized else ()):
            try:
                refuse_quantized(workload, cluster)
            except RequestError as error:
                unfit = (index == w) & (cluster_index == c)
                cluster_problems[unfit], cluster_index[unfit] = str(error), -1
    plans, plan_problems = _plans(table, devices)
    problems = np.where(is_none(text_problems), plan_problems, text_problems)
    return Jobs(
        workloads, clusters, index, cluster_index, plans, workload_problems, cluster_problems, problems,
        labels,
    ).checked()  # fmt: skip


def runs_from_table(table: Table, catalog: Catalog, read: WorkloadReader | None = None) -> Runs:
    """Return the rows of a table as runs: the jobs, as `jobs_from_table`, and the table of what was measured.

    A blank global_batch that other columns imply is filled in; `jobs.labels` is the table as given.
    """
    jobs = jobs_from_table(table, catalog, read)
    given, micro = table.numbers("global_batch"), table.numbers("micro_batch")
    reasons = () if jobs.plan_problem is None else jobs.plan_problem
    legal = np.array([reason is None for reason in reasons], dtype=bool)
    implied = np.where(legal & ~np.isnan(micro), jobs.plans.global_batch, np.nan)
    filled = np.where(np.isnan(given), implied, given)
    return Runs(jobs, table.with_columns(global_batch=filled))


def _workloads(
    table: Table, columns: tuple[str, ...], read: WorkloadReader
) -> tuple[tuple[Workload, ...], NDArray[np.int32], NDArray[np.object_]]:
    first, group = table.groups(columns)
    part = Table({c: table.columns[c] for c in columns if c in table}, len(table))
    workloads: list[Workload] = []
    index = np.full(len(first), -1, dtype=np.int32)
    problems = np.full(len(first), None, dtype=object)
    for g, row in enumerate(first):
        try:
            answer = read(part.row(int(row)))
        except ForerunError as error:
            answer = str(error)
        if isinstance(answer, str):
            problems[g] = answer
            continue
        index[g] = len(workloads)
        workloads.append(answer)
    return tuple(workloads), index[group], problems[group]


@dataclass(frozen=True)
class NodeLayout:
    """How many devices on which nodes; `placement` is () where all nodes hold the same."""

    devices: int
    nodes: int
    devices_per_node: int
    placement: tuple[int, ...] = ()


class LayoutError(ValueError):
    """Counts that contradict one another; its text is the row's reason."""


def _clusters(
    table: Table, catalog: Catalog
) -> tuple[tuple[Cluster, ...], NDArray[np.int32], Reasons, FloatArray]:
    degrees = [table.numbers(name) for name in ("dp", "tp", "pp", "cp", "partitions")]
    with np.errstate(over="ignore", invalid="ignore"):  # absurd degrees are refused later
        world = degrees[0] * np.prod([_filled(d, 1.0) for d in degrees[1:]], axis=0)
    # The plan states the devices only where the cluster columns do not.
    world = np.where(np.isnan(table.numbers("devices")), world, np.nan)
    first, group = table.with_columns(_world=world).groups((*CLUSTER_COLUMNS, "_world"))
    positions: dict[Any, int] = {}
    clusters: list[Cluster] = []
    index = np.full(len(first), -1, dtype=np.int32)
    problems = np.full(len(first), None, dtype=object)
    devices = np.full(len(first), np.nan)
    for g, row in enumerate(first):
        cells, machine, reason = _machine(table.row(int(row)), catalog)
        try:
            layout = layout_of(cells, machine.usual if machine else 1, float(world[row]))
            devices[g] = layout.devices
            if machine is None:
                problems[g] = reason
                continue
            key = (layout, machine.text, *(cells.get(name) for name in _OF_CLUSTER))
            if key not in positions:
                clusters.append(_cluster(machine, layout, cells, catalog))
                positions[key] = len(clusters) - 1
            index[g] = positions[key]
        except (LayoutError, ForerunError) as error:
            problems[g] = reason or str(error)
            if reason == _NO_DEVICE and str(error) == _NO_COUNT:
                problems[g] = _NO_DEVICE_NOR_COUNT
    return tuple(clusters), index[group], problems[group], devices[group]


@dataclass(frozen=True)
class _Machine:
    """What a row runs on; `usual` devices a node, `text` of the whole cluster where a row states no more."""

    device: Device
    usual: int
    instance: str = ""
    text: str = ""


def _machine(
    cells: dict[str, Any], catalog: Catalog
) -> tuple[dict[str, Any], _Machine | None, str]:
    """Return the cells with the counts of a cluster's text, the machine, and why it is not known.

    `cluster` is a cluster's text only where device and instance_type are blank; else a label.
    """
    label, name, text = (
        str(cells.get(column, "")).strip() for column in ("device", "instance_type", "cluster")
    )
    try:
        if not label and not name:
            if not text:
                return cells, None, _NO_DEVICE
            found = catalog.cluster(text)
            counts = {name: getattr(found, name) for name in _COUNTS}
            for column, count in counts.items():
                if cells.get(column, count) != count:
                    clash = f"the cluster {text} has {count} {column}, but {column} is"
                    return cells, None, f"{clash} {cells[column]:g}; correct one of them"
            return {**cells, **counts}, _Machine(found.device, found.devices, text=text), ""
        known = catalog.is_instance(name) if name else False
        if not label or (known and label.lower() == "cpu"):
            device = catalog.cluster(f"1x{name}").device
        else:
            device = catalog.device(label)[0]
        if known:
            instance = catalog.instance(name)[0]
            if instance.device == device.id:
                return cells, _Machine(device, instance.device_count, name), ""
    except ForerunError as error:
        return cells, None, str(error)
    return cells, _Machine(device, device.devices_per_node), ""


def _cluster(
    machine: _Machine, layout: NodeLayout, cells: Mapping[str, Any], catalog: Catalog
) -> Cluster:
    """Return the cluster of a layout; whole nodes of a known machine have that machine's links."""
    stated = cells.get("price_usd_per_hour")
    price = None if stated is None else float(stated)
    text, rate = cells.get("interconnect") or None, cells.get("node_gbps")
    links = text
    if rate is not None:
        if not _LEAST_GBPS <= rate < _MOST_GBPS:
            raise LayoutError(f"node_gbps={rate:g} is no rate of a network; correct it")
        plain = np.format_float_positional(rate, precision=6, trim="-")
        links = f"{plain} Gb/s; {text or ''}"  # the first rate of a network counts
    if not layout.placement and links is None:
        if machine.text:
            return catalog.cluster(machine.text, price=price)
        if machine.instance and layout.devices_per_node == machine.usual:
            return catalog.cluster(f"{layout.nodes}x{machine.instance}", price=price)

    def linked(words: str | None) -> Cluster:
        return catalog.cluster_for(
            machine.device, layout.nodes, layout.devices_per_node,
            interconnect_text=words, price=price, placement=layout.placement,
        )  # fmt: skip

    cluster = linked(links)
    if text and rate is not None:
        alone, usual = linked(text), linked("").inter.bytes_per_second
        notes = [w for w in alone.warnings if "is not understood" in w]
        own = alone.inter.bytes_per_second
        if own != usual and abs(own / cluster.inter.bytes_per_second - 1) > _SAME_RATE:
            notes.append(
                f"the interconnect {text!r} has another rate than node_gbps={rate:g}, which counts"
            )
        cluster = replace(cluster, warnings=(*cluster.warnings, *notes))
    instance = str(cells.get("instance_type", ""))
    return replace(cluster, instance_type=instance) if instance else cluster


def layout_of(cells: Mapping[str, Any], usual: int, world: float = math.nan) -> NodeLayout:
    """Return the layout that nodes, devices, devices_per_node and placement state or imply. Raises LayoutError.

    `usual` devices are in a node by default; `world` is dp x tp x pp x cp x partitions of the plan, NaN for none.
    """
    nodes, per_node, devices = (_whole(cells, name) for name in _COUNTS)
    placement = parse_placement(str(cells.get("placement", "")), devices, nodes)
    if placement:
        total, even = sum(placement), len(set(placement)) == 1
        for name, stated, found in (("devices", devices, total), ("nodes", nodes, len(placement))):
            if stated not in (None, found):
                raise LayoutError(
                    f"the placement {'-'.join(map(str, placement))} has {found} {name}, but"
                    f" {name} is {stated}; correct one of them"
                )
        return NodeLayout(total, len(placement), max(placement), () if even else placement)
    if devices is None and nodes is not None:
        devices = nodes * (per_node or usual)
    devices = devices or per_node or (int(world) if 1 <= world <= _LARGEST else None)
    if devices is None:
        raise LayoutError(_NO_COUNT)
    return _spread(devices, nodes or math.ceil(devices / (per_node or max(usual, 1))), per_node)


def _whole(cells: Mapping[str, Any], name: str) -> int | None:
    value = cells.get(name)
    if value is None or value == "":
        return None
    number = float(value)
    if not (number.is_integer() and 1 <= number <= _LARGEST):
        raise LayoutError(f"{name}={number:g} is not a whole number above zero; correct it")
    return int(number)


def parse_placement(text: str, devices: int | None, nodes: int | None) -> tuple[int, ...]:
    """Return devices on each node from `4444`, `134` or `4-4-2`; () where blank. Raises LayoutError."""
    text = text.strip()
    if not text:
        return ()
    if "-" in text:
        counts = [c.strip() for c in text.split("-")]
    elif text.isascii() and text.isdigit() and nodes == 1 and int(text) == devices:
        counts = [text]
    else:
        counts = list(text)
    if not all(re.fullmatch(r"[0-9]{1,6}", c) and int(c) > 0 for c in counts):
        raise LayoutError(
            f"placement {text!r} is not one digit a node nor counts joined by dashes; write for"
            " example 134 or 4-4-2"
        )
    return tuple(int(c) for c in counts)


def _spread(devices: int, nodes: int, per_node: int | None) -> NodeLayout:
    """Return devices filled node by node where the node's size is stated, else spread evenly."""
    if nodes > devices or (per_node is not None and devices > nodes * per_node):
        size = f" of {per_node}" if per_node else ""
        found = f"{devices} devices do not lie on {nodes} nodes{size}"
        raise LayoutError(f"{found}; correct one of the counts")
    if devices % nodes == 0:
        return NodeLayout(devices, nodes, devices // nodes)
    if nodes > 100_000:
        raise LayoutError(f"{nodes} nodes of unequal size; give a placement")
    if per_node is not None and math.ceil(devices / per_node) == nodes:
        counts = (per_node,) * (nodes - 1) + (devices - per_node * (nodes - 1),)
    else:
        low, more = divmod(devices, nodes)
        counts = (low + 1,) * more + (low,) * (nodes - more)
    return NodeLayout(devices, nodes, max(counts), counts)


def _with_plan_fields(table: Table) -> tuple[Table, Reasons]:
    """Return the table with each row's plan text in the plan columns, and reasons (n,) where these clash."""
    problems: Reasons = np.full(len(table), None, dtype=object)
    if "plan" not in table:
        return table, problems
    texts = table.texts("plan")
    columns: dict[str, NDArray[Any]] = {}
    for text in filter(str.strip, dict.fromkeys(texts.tolist())):
        rows = np.asarray(texts == text, dtype=bool)
        try:
            fields = plan.parse_plan(text)
        except RequestError as error:
            problems[rows] = str(error)
            continue
        for name, value in fields.items():
            is_number = COLUMNS[name].kind == "number"
            if name not in columns:
                columns[name] = (table.numbers(name) if is_number else table.texts(name)).copy()
            column = columns[name]
            word = str(value) if is_number else str(value).lower()
            if is_number:
                blank = np.isnan(column)
                other = column != value
            else:
                blank = np.asarray(column == "", dtype=bool)
                other = np.array([str(cell).strip().lower() != word for cell in column])
            clash = f"the plan says {name}={word} and its own column another; give it once"
            problems[rows & other & ~blank & is_none(problems)] = clash
            column[rows & blank] = value if is_number else word
    return table.with_columns(**columns), problems


@dataclass
class _Numbers:
    """Whole numbers read from a table, with the first thing wrong in each row."""

    table: Table
    problems: Reasons

    def whole(self, name: str, least: int = 1) -> FloatArray:
        """Return a column (n,), NaN where blank or not a whole number from `least` upward."""
        values = self.table.numbers(name)
        with np.errstate(invalid="ignore"):
            good = (values >= least) & (values <= LARGEST) & (np.floor(values) == values)
        wanted = "a whole number above zero" if least else "a whole number from 0 upward"
        reason = f"{name}={{:.10g}} is not {wanted}; correct it"
        self.blame(~good & ~np.isnan(values), reason, values)
        return np.where(good, values, np.nan)

    def blame(self, rows: BoolArray, reason: str, *values: FloatArray) -> None:
        """Give the rows a reason where they have none yet, with their values put into it."""
        at = np.flatnonzero(rows & is_none(self.problems))
        if not values or not at.size:
            self.problems[at] = reason
            return
        # One sentence for each distinct value; a table may hold as many wrong values as rows.
        distinct, index = np.unique(
            np.column_stack([v[at] for v in values]), axis=0, return_inverse=True
        )
        found = np.array([reason.format(*each) for each in distinct], dtype=object)
        self.problems[at] = found[index.reshape(-1)]


def _plans(table: Table, devices: FloatArray) -> tuple[plan.PlanColumns, Reasons]:
    n = len(table)
    read = _Numbers(table, np.full(n, None, dtype=object))
    columns: dict[str, Any] = {name: _filled(read.whole(name), 1) for name in _DEGREES}
    # The stage of ZeRO is what the framework's label states, or its usual one.
    labels, position = np.unique(table.texts("framework").astype(str), return_inverse=True)
    usual = (float(any(w in x.lower() for w in _SHARDS_STATES)) for x in labels)
    found = [stated_fields(x).get("zero_stage", u) for x, u in zip(labels, usual, strict=True)]
    stages = np.array(found, dtype=np.float64)[position]
    columns["zero_stage"] = _filled(read.whole("zero_stage", least=0), stages)
    over = columns["zero_stage"] > 3
    read.blame(over, "zero_stage is above 3; write 0, 1, 2 or 3")
    columns["zero_stage"][over] = 0
    columns.update({name: _coded(read, name) for name in (*plan.WORDS, *plan.BOOLEAN_FIELDS)})
    split = np.array([any(w in x.lower() for w in _SPLITS_SEQUENCES) for x in labels], dtype=bool)
    splits = split[position] & (table.texts("sequence_parallel") == "")
    columns["sequence_parallel"][splits & (columns["tp"] > 1)] = 1
    through_servers = np.isin(columns["sync"], plan.SERVER_SYNCS)
    columns["parameter_servers"] = _filled(
        read.whole("parameter_servers", least=0), through_servers.astype(float)
    )
    for name in ("stale_bound", "gradient_bits"):
        columns[name] = _filled(read.whole(name, least=0), 0)
    for name, most in plan.MOST.items():
        beyond = columns[name] > most
        read.blame(beyond, f"{name} is above {most}; write 0 to {most}")
        columns[name][beyond] = 0
    given, parts = read.whole("dp"), columns["partitions"]
    inner = columns["tp"] * columns["pp"] * columns["cp"] * parts
    derived = devices / inner
    blank = np.isnan(given)
    read.blame(blank & np.isnan(devices), NO_DP)
    uneven = blank & ~np.isnan(devices) & (np.floor(derived) != derived)
    read.blame(
        uneven & (parts > 1), "{:.0f} devices are not divisible by partitions={:.0f}; choose a divisor",
        devices, parts,
    )  # fmt: skip
    read.blame(
        uneven, "{:.0f} devices are not divisible by tp x pp x cp = {:.0f}; choose a divisor",
        devices, inner,
    )  # fmt: skip
    dp = np.where(blank, derived, given)
    columns["dp"] = np.where(np.isnan(dp) | uneven, 1.0, dp)
    columns["micro_batch"], columns["global_batch"] = _batches(read, columns["dp"], columns["pp"])
    # No machine has such products: 32-bit columns must not overflow.
    world = columns["dp"] * inner
    absurd = (world > LARGEST) | (columns["pp"] * columns["vpp"] > LARGEST)
    read.blame(absurd, "the degrees multiply to more than 2^31 devices; correct dp, tp, pp, cp")
    for name in ("dp", *_DEGREES):
        columns[name] = np.where(absurd, 1.0, columns[name])
    return plan.PlanColumns.build(n, **{k: v.astype(np.int32) for k, v in columns.items()}), (
        read.problems
    )


def _filled(values: FloatArray, blank: float | FloatArray) -> FloatArray:
    return np.where(np.isnan(values), blank, values)


def _batches(read: _Numbers, dp: FloatArray, pp: FloatArray) -> tuple[FloatArray, FloatArray]:
    total, micro = read.whole("global_batch"), read.whole("micro_batch")
    accumulate = read.whole("grad_accum")
    derived_total = micro * dp * _filled(accumulate, 1.0)
    total = np.where(np.isnan(total), derived_total, total)
    read.blame(np.isnan(total), NO_BATCH)
    total = _filled(total, 1.0)
    share = np.where((pp > 1) & np.isnan(accumulate), 1.0, total / dp / _filled(accumulate, 1.0))
    # A share that is no whole number is cut: what remains is one more, smaller micro-batch.
    micro = np.where(np.isnan(micro), np.maximum(np.floor(share), 1.0), micro)
    read.blame(total > LARGEST, "the global batch is above 2^31 samples; correct the batch columns")
    return micro, np.minimum(total, LARGEST)


def _coded(read: _Numbers, name: str) -> FloatArray:
    if name not in read.table:
        return np.zeros(len(read.table))
    texts = read.table.texts(name)
    codes: dict[str, int] = {"": 0}
    for text in dict.fromkeys(texts):
        if text in codes:
            continue
        codes[text] = 0
        try:
            value = plan.plan_value(name, text)
            allowed = plan.WORDS.get(name, (False, True))
            if value not in allowed:
                raise RequestError(f"{name}={text}", f"no such {name}", one_of(text, allowed))
            codes[text] = allowed.index(value)
        except RequestError as error:
            read.blame(texts == text, str(error))
    return np.fromiter((codes[t] for t in texts), np.float64, len(texts))
