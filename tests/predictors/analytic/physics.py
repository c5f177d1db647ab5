"""Strategies that draw workloads, clusters and plans for the physics tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from forerun.domain.forecast import Forecast
from forerun.domain.hardware import Cluster, Link
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_device
from forerun.workloads.transformer import TransformerSpec, transformer_workload

LAYERS, HEADS = 8, 16
# Priors where a framework that is not stated is one software, with the unnamed profile: no mixture.
UNNAMED = Constants(run_counts={"framework:": 1.0})


def transformer(layers: int = LAYERS, hidden: int = 1024, **changes: object) -> Workload:
    """Return a GPT-like workload with 16 heads."""
    spec = TransformerSpec(
        layers=layers, hidden=hidden, heads=HEADS, ffn=4 * hidden, vocab=32000, seq_len=1024
    )
    return transformer_workload(spec, "gpt-test").with_(**changes)


def cluster_of(devices: int, **changes: object) -> Cluster:
    """Return sample devices, at most eight a node, with changed device fields."""
    per_node = min(devices, 8)
    device = replace(tiny_device(), **changes)  # type: ignore[arg-type]
    return tiny_cluster(devices // per_node, per_node, device)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a legal plan of the 8-layer, 16-head transformer on up to 64 devices."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 1, 2]))
    dp = draw(st.sampled_from([1, 2, 4, 8]))
    micro = draw(st.sampled_from([1, 2, 4]))
    return Plan(
        dp=dp, tp=tp, pp=pp, cp=cp, micro_batch=micro,
        vpp=draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        global_batch=micro * dp * draw(st.sampled_from([1, 2, 8])),
        zero_stage=draw(st.sampled_from([0, 1, 2, 3])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        sequence_parallel=draw(st.booleans()) and tp > 1,
    )  # fmt: skip


def ask(workload: Workload, cluster: Cluster, plan: Plan) -> Forecast:
    """Return the forecast of one job by priors."""
    return asks((workload, cluster, plan))[0]


def asks(*questions: tuple[Workload, Cluster, Plan]) -> list[Forecast]:
    """Return the forecasts of several jobs by priors, asked at once: a call takes as long for one."""
    jobs = Jobs.of([Job(*question) for question in questions])
    answer = AnalyticPredictor(UNNAMED).predict(jobs)
    return [answer[i] for i in range(len(questions))]


def faster_links(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with both links faster."""

    def quicker(link: Link) -> Link:
        return replace(link, bytes_per_second=link.bytes_per_second * factor)

    return replace(cluster, intra=quicker(cluster.intra), inter=quicker(cluster.inter))
