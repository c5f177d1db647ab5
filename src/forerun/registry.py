"""Registry: names to things, imported when used.

A plug-in is an installed package with an entry point in a group such as `forerun.predictors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from forerun.errors import RequestError, UnknownNameError, nearest_names


@dataclass(frozen=True, slots=True)
class Registration:
    """One name: where it lives (`package.module:attribute`), what it is, and who brought it."""

    name: str
    target: str
    help: str = ""
    origin: str = "forerun"


def _rows(*rows: str) -> tuple[Registration, ...]:
    """Return built-ins from rows of the form `name | module:attribute | help`."""
    cells = ([cell.strip() for cell in row.split("|")] for row in rows)
    return tuple(Registration(name, f"forerun.{target}", text) for name, target, text in cells)


_BUILT_IN: Mapping[str, tuple[Registration, ...]] = {
    "predictors": _rows(
        "analytic | predictors.analytic:AnalyticPredictor | physics: operations, collectives, pipeline and memory; runs calibrate it",
        "residual | predictors.residual:ResidualPredictor | physics, and a correction learned from runs where left-out runs show that it helps",
        "constant-mfu | predictors.laws.constant_mfu:ConstantMFU | the rule of thumb: a constant share of the peak rate; does not predict memory",
        "ernest | predictors.laws.ernest:Ernest | four terms of size and machines, from runs of the same workload and device",
        "linear-scaling | predictors.laws.linear_scaling:LinearScaling | perfect scaling from the nearest measured number of devices; the baseline",
        "ps-saturation | predictors.laws.ps_saturation:PsSaturation | parameter servers, asynchronous or not: rates of workers and servers, joined",
        "goodput | predictors.laws.goodput:Goodput | Pollux's law: passes, and reductions within and between nodes that overlap with them",
        "auto | predictors.choice:Auto | for each kind of question the one of analytic, hierarchical, gaussian, roofline, linear-scaling and ernest (more by the setting `candidates`) that does best on held-out runs",
        "generic | predictors.laws.generic:Generic | power laws of whatever changes among the runs: one expression for any framework",
        "hierarchical | predictors.laws.hierarchical:Hierarchical | all-reduce physics pooled over workloads and clusters: for few runs, and far from them",
        "roofline | predictors.laws.roofline:Roofline | what a sample costs in products, memory traffic and host time, pooled over workloads: for devices that a workload never ran on",
        "gaussian | predictors.regression.gaussian:Gaussian | a line in the logs and a Gaussian process of its errors, from runs of the same kind",
        "ray-ml | predictors.regression.ray_ml:RayML | the Ray study's AutoML: nine regressions on augmented features, the best one chosen",
    ),
    "searchers": _rows(
        "random | search.searchers:RandomSearch | every configuration, drawn",
        "grid | search.searchers:GridSearch | a coarse grid, then all between",
        "cherrypick | search.cherrypick:CherryPick | expected improvement of a Gaussian process of the cost (NSDI 2017)",
        "bayesian | search.bayesian:Bayesian | gain for money under a process of scaling laws; stopped runs are lower bounds",
    ),
    "readers": _rows(
        "zoo | workloads.resolve:ZooReader | a name of the zoo",
        "module | workloads.resolve:ModuleReader | package.module:callable",
        "onnx | workloads.resolve:OnnxReader | an .onnx file",
        "hf-config | workloads.resolve:HfConfigReader | a HuggingFace config.json",
        "spec | workloads.resolve:SpecReader | a YAML spec",
    ),
    "systems": _rows(
        "ernest | systems.recipe:ernest | four terms of size and machines (NSDI 2016)",
        "cherrypick | systems.recipe:cherrypick | the cheapest configuration under a time limit, by Bayesian optimisation (NSDI 2017)",
        "generic_model | systems.recipe:generic_model | power laws by differential evolution, for any framework (2023)",
        "kdd15 | systems.recipe:kdd15 | layers cut over machines beside parameter servers, and the best of it (KDD 2015)",
        "ray_ml | systems.recipe:ray_ml | regressions on augmented features, the best on rows set aside (the Ray study)",
    ),
    "runners": _rows(
        "local | measure.local:LocalRunner | processes of this machine, or of hosts, as torchrun starts them",
        "ray | measure.ray:RayRunner | Ray Train, on a cluster or this machine",
    ),
    "stores": _rows("sql | store:open_store | an SQLite file, or PostgreSQL by URL"),
}
GROUPS: tuple[str, ...] = tuple(_BUILT_IN)


@cache
def _plugins(group: str) -> tuple[Registration, ...]:
    from importlib.metadata import entry_points

    return tuple(
        Registration(
            point.name, point.value, f"from {point.value}", point.dist.name if point.dist else "?"
        )
        for point in entry_points(group=f"forerun.{group}")
    )


def entries(group: str) -> tuple[Registration, ...]:
    """Return every entry of a group, built-ins first. Raises RequestError for no such group or a name taken twice."""
    if group not in _BUILT_IN:
        raise UnknownNameError("registry group", group, GROUPS)
    found = {entry.name: entry for entry in _BUILT_IN[group]}
    for plugin in _plugins(group):
        if plugin.name in found:
            raise RequestError(
                f"{group} {plugin.name!r} of the package {plugin.origin}",
                f"{found[plugin.name].origin} already has that name",
                "give the entry point another name, or uninstall the package",
            )
        found[plugin.name] = plugin
    return tuple(found.values())


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group, built-ins first. Raises as `entries` does."""
    return tuple(entry.name for entry in entries(group))


def load(group: str, name: str) -> Any:
    """Return the thing behind a name, importing its module now. Raises RequestError."""
    for entry in _BUILT_IN.get(group, ()):
        if entry.name == name:  # a built-in needs no look at the installed packages
            return _import(entry)
    for entry in entries(group):
        if entry.name == name:
            return _import(entry)
    known = names(group)
    raise UnknownNameError(group.removesuffix("s"), name, known, f"({', '.join(known)})")


def _import(entry: Registration) -> Any:
    module, _, attribute = entry.target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if entry.origin == "forerun":
            raise
        raise RequestError(
            f"loading {entry.name!r} from {entry.target}", str(error),
            f"correct or uninstall the package {entry.origin}",
        ) from error  # fmt: skip


def imported(what: str, reference: str, form: str) -> Any:
    """Return what `package.module:attribute` names. Raises RequestError where there is no such thing.

    what, form: the thing, and how its reference is written, in words.
    """
    module_name, _, attribute = reference.partition(":")
    try:
        target: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        own = module_name == missing or module_name.startswith(f"{missing}.")
        found = "no such module" if own else f"it imports {missing!r}, which is not installed"
        raise RequestError(
            f"{what} {reference!r}", f"{module_name}: {found}",
            "run from the folder that holds it, or install it",
        ) from error  # fmt: skip
    for part in attribute.split("."):
        if not hasattr(target, part):
            near = nearest_names(part, [name for name in dir(target) if not name.startswith("_")])
            raise RequestError(
                f"{what} {reference!r}", f"{module_name} has no attribute {part!r}",
                f"did you mean {', '.join(near)}?" if near else form,
            )  # fmt: skip
        target = getattr(target, part)
    return target
