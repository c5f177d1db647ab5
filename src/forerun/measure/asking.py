"""Asking: a Job becomes the Task that would answer it by training, where that can be."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forerun.domain.job import Job
from forerun.errors import RequestError
from forerun.measure.task import PRECISIONS, Steps, Task

_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def task_of(job: Job, entries: Mapping[str, str], steps: Steps, **given: object) -> Task:
    """Return the task of a job: data-parallel training of what its workload's name stands for.

    Args:
        job: its workload's name is a `package.module:callable` itself, or a key of `entries`.
        entries: what to train for a workload, by the workload's name.
        steps: how long is measured.
        given: further fields of the task, which win.

    Raises:
        RequestError: no entry is known, or the plan is more than data-parallel.
    """
    name, plan = job.workload.name, job.plan
    entry = entries.get(name) or (name if _MODULE.fullmatch(name) else "")
    if not entry:
        raise RequestError(
            f"measuring {name}", "it is not known what to train for it",
            f"name a package.module:callable for it (entries={{'{name}': ...}})",
        )  # fmt: skip
    odd = [f"{f}={getattr(plan, f)}" for f in ("tp", "pp", "cp", "ep") if getattr(plan, f) > 1]
    odd += [f"zero_stage={plan.zero_stage}"] if plan.zero_stage else []
    odd += [f"recompute={plan.recompute}"] if plan.recompute != "none" else []
    odd += [f"sync={plan.sync}"] if plan.sync != "allreduce" else []
    if odd:
        raise RequestError(
            f"measuring {name} with {', '.join(odd)}",
            "forerun's own loop trains data-parallel by all-reduce, and nothing else",
            "measure a training function or script of your own",
        )
    if job.workload.precision not in PRECISIONS:
        raise RequestError(
            f"measuring {name} in {job.workload.precision}", "its loop has no such precision",
            f"use {', '.join(PRECISIONS)}",
        )  # fmt: skip
    passes = plan.global_batch // (plan.micro_batch * plan.dp)
    size = int(job.workload.dataset_size)
    fields: dict[str, object] = {
        "workers": plan.dp, "global_batch": plan.global_batch, "steps": steps,
        "dataset_size": size if size >= plan.global_batch else 0,
        "gpus_per_worker": int(job.cluster.device.kind == "gpu"),
        "precision": job.workload.precision, "optimizer": job.workload.optimizer,
        "settings": {"accumulate": passes} if passes > 1 else {}, **given,
    }  # fmt: skip
    return Task(entry, **fields)  # type: ignore[arg-type]
