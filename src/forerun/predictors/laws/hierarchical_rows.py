"""What the hierarchical law reads of n jobs: who they are (app, cluster) and how they are laid out.

An app is a workload in one framework, precision, sequence length, image size, kind of
synchronisation and dataset; a cluster is a device in one instance type, label and interconnect.
Neither must be known to the zoo or the catalogue: labels serve.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import is_none
from forerun.domain.hardware import Cluster
from forerun.predictors.laws.hierarchical_law import REFERENCE_RATE, LawInputs
from forerun.predictors.laws.law_rows import GROUP, RUN_SETTINGS, SETTINGS, LawRows
from forerun.tables import Jobs
from forerun.units import GIGA

Name = tuple[str, ...]

APP = ("workload", "framework", "precision", "seq_len", "image_size", "sync", "dataset",
       *RUN_SETTINGS)  # fmt: skip
CLUSTER = ("device", "instance_type", "cluster", "interconnect")
# Of an Amazon machine one TCP flow goes at 10 Gb/s at most, inside a placement group (its own
# documentation of instance network bandwidth); a ring has one flow to its neighbour.
FLOW_GB_PER_S = 1.25
_AMAZON = re.compile(r"\b(aws|amazon|ec2)\b", re.IGNORECASE)
_NETWORK = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*g(?:b|bit|bps)", re.IGNORECASE)
# Nominal rates where nothing is known of the machine: PCIe 3.0, and 10 Gb/s Ethernet.
USUAL_INTRA_GB, USUAL_INTER_GB = 16.0, 1.25
# Texts of the row itself: a precision that nobody stated is not the usual one of its workload.
_EXTRA = ("dataset", "cluster", "interconnect", "precision")
_SERVERS = ("ps-sync", "ps-async")
_ROUNDING = 1e-9


@dataclass(frozen=True)
class HierarchicalRows:
    """n jobs by app and cluster, and as numbers."""

    jobs: Jobs
    quantity: str = "step"

    @cached_property
    def law_rows(self) -> LawRows:
        """The same jobs as every law sees them; resources are numbers here, and make no kinds."""
        return LawRows(self.jobs, self.quantity, apart=False)

    @cached_property
    def resources(self) -> LawRows:
        """What each worker is given."""
        return self.law_rows

    @cached_property
    def names(self) -> tuple[list[tuple[Name, Name]], IntArray]:
        """Distinct pairs of app and cluster, and which each job is, (n,)."""
        kinds, kind = self.law_rows.kinds
        extra, code = self._extra
        codes = kind * max(len(extra), 1) + code
        # There are few codes, and counting them is faster than sorting a million.
        both = np.flatnonzero(np.bincount(codes))
        index = np.empty(int(codes.max(initial=-1)) + 1, dtype=np.int64)
        index[both] = np.arange(len(both))
        pairs = []
        for value in both.tolist():
            k, e = divmod(value, max(len(extra), 1))
            settings = dict.fromkeys(RUN_SETTINGS, "")  # kinds of steps end before them
            settings.update(zip((*GROUP, *SETTINGS, *RUN_SETTINGS), kinds[k], strict=False))
            settings.update(
                (key, text) for key, text in zip(_EXTRA, extra[e], strict=True) if text is not None
            )
            pairs.append((_name(APP, settings), _name(CLUSTER, settings)))
        merged = list(dict.fromkeys(pairs))
        place = {pair: i for i, pair in enumerate(merged)}
        order = np.array([place[pair] for pair in pairs], dtype=np.int64)
        return merged, order[index[codes]]

    @cached_property
    def _extra(self) -> tuple[list[tuple[str | None, ...]], IntArray]:
        """Distinct texts of `_EXTRA`, None where the rows have no such column, and whose each is."""
        n = len(self.jobs)
        given = [name for name in _EXTRA if name in self.law_rows.labels]
        blank: tuple[str | None, ...] = tuple(None if e == "precision" else "" for e in _EXTRA)
        if not given:
            return [blank], np.zeros(n, dtype=np.int64)
        columns = [self.law_rows.labels.texts(name).tolist() for name in given]
        known = dict.fromkeys(zip(*columns, strict=True))
        place = {key: i for i, key in enumerate(known)}
        index = np.fromiter(map(place.__getitem__, zip(*columns, strict=True)), np.int64, n)
        extra = []
        for key in known:
            texts = dict(zip(given, key, strict=True))
            usual = zip(_EXTRA, blank, strict=True)
            extra.append(tuple(texts[e].strip() if e in texts else other for e, other in usual))
        return extra, index

    @cached_property
    def nodes_and_busy(self) -> tuple[FloatArray, FloatArray]:
        """Nodes, and devices on the busiest of them, (n,) each; one node where nothing says."""
        known = [_layout(cluster) for cluster in self.jobs.clusters] + [(np.nan, np.nan)]
        nodes, busy = np.array(known)[self.jobs.cluster_index].T
        loose = np.flatnonzero(self.jobs.cluster_index < 0)
        if len(loose):
            stated = LawRows(self.jobs.take(loose)).placements
            nodes[loose], busy[loose] = stated.nodes, stated.most
        devices = np.where(self.law_rows.machines >= 1, self.law_rows.machines, 1.0)
        nodes = np.where(nodes >= 1, np.minimum(nodes, devices), 1.0)
        busy = np.where(busy >= 1, np.minimum(busy, devices), np.ceil(devices / nodes))
        return nodes, busy

    @cached_property
    def placements(self) -> tuple[list[str], IntArray]:
        """Distinct placements as text, and which each job has, (n,); blank where none is stated."""
        if "placement" not in self.law_rows.labels:
            known = ["-".join(map(str, cluster.placement)) for cluster in self.jobs.clusters]
            return [*known, ""], self.jobs.cluster_index.astype(np.int64) % (len(known) + 1)
        texts = self.law_rows.labels.texts("placement").tolist()
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return list(place), np.fromiter(map(place.__getitem__, texts), np.int64, len(texts))

    @cached_property
    def rates(self) -> tuple[FloatArray, FloatArray]:
        """Nominal GB/s inside a node and of a node's wire, (n,) each."""
        known = [_rates(cluster) for cluster in self.jobs.clusters]
        table = np.array([*known, (USUAL_INTRA_GB, USUAL_INTER_GB)])
        intra, inter = table[self.jobs.cluster_index].T
        loose = np.flatnonzero(self.jobs.cluster_index < 0)
        if len(loose) and "interconnect" in self.law_rows.labels:
            texts = self.law_rows.labels.texts("interconnect")[loose].tolist()
            found = {text: _network_rate(text) for text in set(texts)}
            inter = inter.copy()
            inter[loose] = [found[text] for text in texts]
        return intra, inter

    @cached_property
    def linked(self) -> NDArray[np.bool_]:
        """Which jobs say what joins their nodes, in a cluster or as text, (n,)."""
        known = self.jobs.cluster_index >= 0
        if "interconnect" not in self.law_rows.labels:
            return known
        return np.asarray(known | (self.law_rows.labels.texts("interconnect") != ""), dtype=bool)

    @cached_property
    def micro_batch(self) -> FloatArray:
        """Samples of a device's forward-backward, else its share of the data, (n,), or NaN."""
        batch = self.law_rows.micro_batch
        if self.quantity != "step":
            share = self.law_rows.size("dataset_size") / self.law_rows.machines
            batch = np.where(np.isnan(self.log_steps_known), share, batch)
        return np.where(batch > 0, batch, np.nan)

    @cached_property
    def log_steps_known(self) -> FloatArray:
        """Log of the steps of one pass through the data, (n,), NaN where not known."""
        if self.quantity == "step":
            return np.zeros(len(self.jobs))
        data, batch = self.law_rows.size("dataset_size"), self.law_rows.size("global_batch")
        with np.errstate(invalid="ignore"):
            # The last step of a pass has what is left; as many as it has samples are no step less.
            return np.asarray(np.log(np.ceil(data / batch * (1.0 - _ROUNDING))))

    @cached_property
    def sided(self) -> NDArray[np.object_]:
        """Why a job is no data-parallel all-reduce, (n,) of text or None."""
        plans = self.jobs.plans
        reasons = np.full(len(self.jobs), None, dtype=object)
        split = self._column("tp") * self._column("pp") * self._column("cp")
        reasons[split > 1] = (
            "it splits the model (tp, pp or cp above 1); this law is of data-parallel training"
        )
        from forerun.domain.plan import SYNC

        servers = np.isin(plans.sync, [SYNC.index(name) for name in _SERVERS])
        reasons[servers] = "parameter servers follow another law than all-reduce; ask ps-saturation"
        reasons[~(self.law_rows.machines > 0)] = "the row says no number of devices"
        problems = self.jobs.plan_problem
        if problems is not None:
            illegal = self.law_rows.states_plan & ~is_none(problems) & is_none(reasons)
            reasons[illegal] = problems[illegal]
        return reasons

    def _column(self, name: str) -> FloatArray:
        stated = self.law_rows.labels.numbers(name)
        planned = getattr(self.jobs.plans, name).astype(np.float64)
        return np.where(np.isnan(stated), planned, stated)

    def inputs(
        self, place: FloatArray, batch: FloatArray, log_cores: FloatArray, log_wire: FloatArray
    ) -> LawInputs:
        """Return what the law reads.

        Args:
            place: of each micro-batch among those measured, (n,), see `LawInputs`.
            batch: micro-batches, (n,), 1 where the law of the job has none.
            log_cores, log_wire: of a worker's cores and of the GB/s of its wire, (n,), NaN where the law
                of the job reads none.
        """
        nodes, busy = self.nodes_and_busy
        intra, inter = self.rates
        steps, cores = self.log_steps_known, np.nan_to_num(log_cores)
        # What is asked of a known link is a ratio to it; of an unknown one it says nothing.
        log_wire = np.where(np.isnan(log_wire) & self.linked, self.resources.log_wire, log_wire)
        told = np.isfinite(log_wire)
        inter = np.where(told, np.minimum(np.exp(log_wire), self._most_flow), inter)
        return LawInputs(
            np.fmax(self.law_rows.machines, 1.0), nodes, busy, batch,
            self.law_rows.accumulation, place, intra, inter, np.where(np.isnan(steps), 0.0, steps),
            np.minimum(cores, 0.0), np.maximum(cores, 0.0),
            np.where(told, np.log(inter / REFERENCE_RATE), 0.0),
        )  # fmt: skip

    @property
    def _most_flow(self) -> FloatArray:
        """Return the GB/s that one flow of each job can have, (n,)."""
        most = [FLOW_GB_PER_S if _is_amazon(cluster) else np.inf for cluster in self.jobs.clusters]
        return np.array([*most, np.inf])[self.jobs.cluster_index]

    @cached_property
    def gradients_gb(self) -> FloatArray:
        """Gigabytes of gradients of each job (n,), NaN where its workload is not resolved."""
        width = [2.0 if w.precision in ("fp16", "bf16") else 4.0 for w in self.jobs.workloads]
        known = [
            w.params * each / GIGA if w.params > 0 else np.nan
            for w, each in zip(self.jobs.workloads, width, strict=True)
        ]
        return np.array([*known, np.nan])[self.jobs.workload_index]


def _name(fields: tuple[str, ...], settings: dict[str, str]) -> Name:
    return tuple(settings[field] for field in fields)


def _layout(cluster: Cluster) -> tuple[float, float]:
    if cluster.placement:
        return float(sum(1 for p in cluster.placement if p)), float(max(cluster.placement))
    return float(cluster.nodes), float(cluster.devices_per_node)


def _rates(cluster: Cluster) -> tuple[float, float]:
    """Return GB/s inside a node and of a node's wire, capped by what one flow can carry."""
    inter = cluster.inter.bytes_per_second * cluster.devices_per_node / GIGA
    if _is_amazon(cluster):
        inter = min(inter, FLOW_GB_PER_S)
    return cluster.intra.bytes_per_second / GIGA, inter


def _is_amazon(cluster: Cluster) -> bool:
    name = f"{cluster.provider} {cluster.instance_type}"
    return cluster.inter.kind == "ethernet" and _AMAZON.search(name) is not None


def _network_rate(text: str) -> float:
    found = _NETWORK.search(text)
    return float(found.group(1)) / 8.0 if found else USUAL_INTER_GB
