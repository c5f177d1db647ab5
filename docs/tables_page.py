"""Prints docs/tables.md: every column of the runs table, and those that a forecast adds."""

from __future__ import annotations

from forerun.advisor.tabular import ADDED
from forerun.tables import COLUMNS
from forerun.tables.suspects import FlagKind
from forerun.tables.table import ALIASES

_GROUPS = {
    "origin": "Where a row comes from.",
    "workload": "What is trained: a zoo name, or a shape, or totals (`params` and `gmacs`).",
    "cluster": "On what. `cluster` alone is enough; so is `device` with `devices`, or"
    " `instance_type` with `nodes`.",
    "plan": "How it is laid out.",
    "length": "How long the job is; at most one of them in a row.",
    "measured": "What was measured. No forecast reads them, except for the length where no other"
    " is stated; a row that has a figure here is a run, and keeps the plan that it ran with.",
}
_HEAD = """\
# The runs table

One table serves jobs to forecast, runs to learn from and runs to judge by. A column may be absent
and a cell blank; columns of your own are kept. Headers may be in any case and under the names of
Megatron, DeepSpeed, torchtitan and HuggingFace; numbers are plain numbers in the unit of the column.
CSV with commas in UTF-8, or Parquet. A cell that is no number declines its own row.

```
workload,cluster,global_batch,plan,tokens
llama3-8b,4x8xh100-sxm-80gb,512,,15e12
llama3-8b,4xaws:p5.48xlarge,512,"tp=4,micro_batch=1,zero_stage=1",15e12
```

`forerun predict --table JOBS.csv --out FORECASTS.csv` answers every row, or says in `declined` why
not. **Blank plan cells**: a row that states no plan at all (nothing of the group *plan* but
`global_batch` and `task`) and has no measured figure gets the plan that the search would choose for
`forerun predict`; `predicted_plan` says which. In every
other row a blank degree is 1, `dp` is devices / (tp pp cp), `global_batch` is micro_batch x dp x
grad_accum, `micro_batch` is global_batch / dp / grad_accum (1 in a pipeline), `zero_stage` is 0 and
`recompute` is none. **Length**: the row's own, else that of `--steps` and its like, else
`samples_to_target` or `epochs_to_target`, else the workload's usual one.

**Columns of your own.** A column that this page does not know is part of a configuration, as `kernel`, `filters` or
`dropout` are, where it varies among runs that are equal otherwise and its values return. Then runs that differ in it
are no repeats; `generic`, `gaussian`, `ray-ml` and `auto` read it (a number above 0 as a number, anything else as a word),
and laws of one network (`ernest`, `hierarchical` ...) are of one value of it and decline others. Columns that name a run
(`id`, `date`, `seed`, `host` ...), that are figures (endings such as `_s`, `_bytes`, `loss`), that have a value of their own
in most rows, or that go with another column, are none. `forerun fit` prints what was decided, with its reasons;
`--own-columns none`, or names with commas, changes it, and so does the setting `own_columns`. A job to forecast states
them under the same names.

**Headers of your own.** `--map 'my batch=global_batch'` (may be repeated) reads a header as a column, in every table of
the command that has it; `forerun.read_table(path, {"my batch": "global_batch"})` does so in Python. Where the header ends
in another unit of time, rate or bytes (`time_per_step_ms`, `Peak (MiB)`), its numbers are converted. Headers that are
close to a column, or are usual for it elsewhere (`batch_size`, `bs`, `n_gpus`, `time_per_step_ms`), are not read by
themselves, as they may mean something else: they are named, with the `--map` to write. A header that no table has, an
unknown column and two headers for one column are refused.

**Devices without runs.** A workload known by its runs alone, its label in no zoo and without shapes, is answered on a
device that it never ran on: by the catalogue's rates of that device, and by what its runs elsewhere, and those of other
workloads, say of its products, memory traffic and host time (`roofline`). The band grows with how far the device's rates
lie from those that ran. One run of any workload on the device improves the answers for all. A device that neither the
catalogue nor any run knows is declined: add it to a catalogue of your own, or give one run there.

**Labels.** Names of datasets match whatever their case, hyphens and spaces (`CIFAR-10`, `cifar10`); they are shown as the
first row writes them. Where runs are given (`--fit`, `--model`), a label that they use for a workload of their own means that
one, though the zoo has the name too (`mlp`): its shape, and how it is trained where the row does not say it, come
from the runs. Blank `cpus_per_worker` and `node_gbps` are those of all runs of that workload on that machine, where
they agree. `predicted_note` says both, what of the row was not understood (interconnect, a misspelt framework), and where it contradicts the zoo or its plan the framework.

**A dataset of the package.** `--runs architectures-lab` (and `--fit`) names 374 runs that come with forerun: one training step of 34
networks of torchvision's kind for images of 32 and 64 pixels, batches of 4 to 16 a worker, on 1 to 4 hosts of half a core of an AMD EPYC
with links of 2 Gb/s, 2026-11-27 (columns `hardware`, `date`). Their traced graphs come too, so that neither torch nor torchvision is
needed, and `--catalog architectures-lab` is their probed device. A file of that name goes before it.

```
forerun fit --runs architectures-lab mine.csv --predictor predictddl:target=residual:features=quantities --out model.json
```
"""
_SUSPECTS = """\
## Runs that look wrong

Whoever learns from runs (`forerun fit`, `--fit`, `Advisor.fit`) first holds every row against physics
and against its siblings: rows of the same workload on the same device. Each flag says file and line,
column, the value found, what was expected and what to do; `--flags FILE.csv` writes them all, `--json`
and `Advisor.flags` have them as columns. A figure that is left out is blank to the predictor; the
rest of its row is still used. Units that are recognised: ms, us, ns, minutes and hours, a time per
epoch, sample, micro-batch or device; a rate of one device, in batches, thousands, millions, per
minute or per hour; tokens for samples and samples for tokens; time and rate swapped; memory in MiB,
kB or bytes. A row is taken for one of them only where its factor fits and it stands apart from its
siblings; the end of a slow tail does not.
"""


def _rows(lines: list[tuple[str, ...]], headers: tuple[str, ...]) -> list[str]:
    rule = ["---"] * len(headers)
    return [f"| {' | '.join(line)} |" for line in (headers, rule, *lines)]


def page() -> str:
    """Return the page."""
    out = [_HEAD]
    others: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        others.setdefault(name, []).append(f"`{alias}`")
    for group, said in _GROUPS.items():
        lines = [
            (f"`{c.name}`", c.kind, c.unit, c.help, ", ".join(others.get(c.name, ())))
            for c in COLUMNS.values()
            if c.group == group
        ]
        out += [f"## {group}", "", said, ""]
        out += [*_rows(lines, ("column", "kind", "unit", "meaning", "also called")), ""]
    out += ["## What a forecast adds", ""]
    out += _rows([(f"`{name}`", said) for name, said in ADDED.items()], ("column", "meaning"))
    out += ["", _SUSPECTS]
    policy = [(f"`{kind}`", kind.meaning, kind.fate) for kind in FlagKind]
    out += _rows(policy, ("kind", "meaning", "in a fit"))
    return "\n".join(out)


if __name__ == "__main__":
    print("<!-- Written by `make docs` from the schema itself. -->\n")
    print(page())
