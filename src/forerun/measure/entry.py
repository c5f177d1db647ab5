"""Entry: what a task names is imported, and told apart: a module to train, or a training function."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import RequestError, nearest_names, one_of
from forerun.measure.task import Task

# Settings of the framework that forerun's own loop honours; others go to the callable.
SETTINGS: Mapping[str, str] = {
    "accumulate": "passes of a worker in one optimizer step",
    "backend": "gloo or nccl",
    "broadcast_buffers": "DDP: buffers are broadcast in each forward",
    "bucket_mb": "DDP: size of a bucket of gradients, MB (2**20 bytes)",
    "channels_last": "images lie in memory with their channels last",
    "compile": "the module goes through torch.compile",
    "find_unused_parameters": "DDP: look for parameters without a gradient",
    "gradient_as_bucket_view": "DDP: gradients are views of the buckets",
    "learning_rate": "of the optimizer",
    "loader_workers": "processes that load data for each worker",
    "norms_every": "steps between two looks at gradient norms, 0 for never; else as often as it costs little",
    "rehearse": "a tiny step first, so that what libraries load is not counted as memory",
    "static_graph": "DDP: the graph does not change",
}
_RETURNS = (
    "return a module, (module, example_inputs), or a dict with module, inputs and, if wanted, loss"
)


@dataclass(frozen=True)
class Built:
    """A module to train, its example inputs, and its loss (None: its own, or made up)."""

    module: Any
    inputs: Any
    loss: Callable[[Any], Any] | None = None


def load_entry(reference: str) -> Any:
    """Return what `package.module:callable` names; the working directory is on the import path.

    Raises:
        RequestError: there is no such module or attribute.
    """
    module_name, _, attribute = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        own = module_name == missing or module_name.startswith(f"{missing}.")
        raise RequestError(
            f"entry {reference!r}",
            f"{module_name}: no such module" if own else f"it imports {missing!r}, not installed",
            "run from the folder that holds it, or install it",
        ) from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            near = nearest_names(part, [name for name in dir(target) if not name.startswith("_")])
            raise RequestError(
                f"entry {reference!r}", f"{module_name} has no attribute {part!r}",
                f"did you mean {', '.join(near)}?" if near else "check its name",
            )  # fmt: skip
        target = getattr(target, part)
    return target


def is_training_function(target: Any) -> bool:
    """Whether it is called with one argument, its configuration; a builder needs none."""
    if isinstance(target, type) or not callable(target):
        return False
    parameters = list(inspect.signature(target).parameters.values())
    needed = [
        p for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    return len(needed) == 1


def build(task: Task, target: Any) -> Built:
    """Return the module and inputs that a builder makes, given what is no setting of the loop.

    Raises:
        RequestError: it takes no argument of that name, or returns something else.
    """
    import torch

    given = {name: value for name, value in task.settings.items() if name not in SETTINGS}
    if isinstance(target, torch.nn.Module):
        takes: set[str] = set()
    else:
        takes = set(inspect.signature(target).parameters)
    for name in given:
        if name not in takes:
            raise RequestError(
                f"{task.entry} with {name}={given[name]}",
                f"neither a setting of the loop nor an argument of {task.entry}",
                one_of(name, [*SETTINGS, *sorted(takes)]),
            )
    made = target if isinstance(target, torch.nn.Module) else target(**given)
    if isinstance(made, Mapping) and "module" in made:
        built = Built(made["module"], made.get("inputs"), made.get("loss"))
    elif isinstance(made, tuple) and len(made) == 2:
        built = Built(*made)
    else:
        built = Built(made, None)
    if not isinstance(built.module, torch.nn.Module) or built.inputs is None:
        what = "no example inputs" if isinstance(built.module, torch.nn.Module) else (
            f"a {type(built.module).__name__}, not a torch.nn.Module"
        )  # fmt: skip
        raise RequestError(f"entry {task.entry!r}", f"it returned {what}", _RETURNS)
    return built


def configuration(task: Task, rank: int) -> dict[str, Any]:
    """Return the mapping that a training function is called with.

    The task's settings by their own names, and beside them what every function may need.
    """
    return {
        "batch": task.batch, "global_batch": task.global_batch, "dataset_size": task.dataset_size,
        "workers": task.workers, "rank": rank, "precision": task.precision,
        "optimizer": task.optimizer, "seed": task.seed, "epochs": task.steps.epochs,
        **task.settings,
    }  # fmt: skip
