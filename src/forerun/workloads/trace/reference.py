"""A reference such as `package.module:callable` becomes a Workload."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from forerun.domain.workload import Workload
from forerun.errors import ForerunError, RequestError, nearest_names
from forerun.workloads.trace.backend import load_torch
from forerun.workloads.trace.module import trace_module

_FORM = "write package.module:callable, for example examples.resnet50:build"
_RETURNS = (
    "return a module, (module, example_inputs), or a dict with module, inputs and, if wanted, "
    "name, loss, optimizer, precision, samples, dataset_size"
)
_OPTIONS = ("name", "loss", "optimizer", "precision", "samples", "dataset_size")


def workload_from_reference(
    reference: str,
    example_inputs: Any = None,
    *,
    seq_len: int | None = None,
    image_size: int | None = None,
    **options: Any,
) -> Workload:
    """Import a callable, call it, and trace the module that it returns.

    It may return a module, a pair (module, example_inputs), or a mapping with keys `module`,
    `inputs` and options of `trace_module`; a module class or a module may stand in its place.

    Args:
        reference: `package.module:callable`; the working directory is on the import path.
        example_inputs: used where the callable returns none.
        seq_len, image_size: passed to the callable, which must have an argument of that name.
        options: as of `trace_module`; they win over what the callable returns.

    Raises:
        MissingExtraError: torch is not installed.
        RequestError: no such module or attribute, not callable, it raises, or it returns
            something else; or the module cannot be traced.
    """
    torch = load_torch(f"trace {reference}")
    target = _load(reference)
    sizes: dict[str, Any] = {"seq_len": seq_len, "image_size": image_size}
    sizes = {key: size for key, size in sizes.items() if size is not None}
    made = _call(reference, target, sizes)
    if isinstance(made, Mapping) and "module" in made:
        found = {key: value for key, value in made.items() if key not in ("module", "inputs")}
        unknown = sorted(set(found) - set(_OPTIONS))
        if unknown:
            raise RequestError(
                f"workload {reference!r}", f"the callable returned unknown keys {unknown}", _RETURNS
            )
        module, inputs = made["module"], made.get("inputs")
    else:
        module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        found = {}
    if not isinstance(module, torch.nn.Module):
        raise RequestError(
            f"workload {reference!r}",
            f"the callable returned {type(module).__name__}, not a torch.nn.Module",
            _RETURNS,
        )
    given = {"name": reference, **found, **{k: v for k, v in options.items() if v is not None}}
    with _guarded(reference, "the module raised", "call it once yourself, and correct it"):
        return trace_module(module, example_inputs if inputs is None else inputs, **given)


def _load(reference: str) -> Any:
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise RequestError(f"workload {reference!r}", "it names no callable", _FORM)
    raised = f"importing {module_name} raised"
    with _guarded(reference, raised, "correct the module so that it imports"):
        try:
            target: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name or module_name
            own = module_name == missing or module_name.startswith(f"{missing}.")
            found = "no such module" if own else f"it imports {missing!r}, which is not installed"
            raise RequestError(
                f"workload {reference!r}", f"{module_name}: {found}",
                "run from the folder that holds it, or install it",
            ) from error  # fmt: skip
    for part in attribute.split("."):
        if not hasattr(target, part):
            near = nearest_names(part, [n for n in dir(target) if not n.startswith("_")])
            raise RequestError(
                f"workload {reference!r}", f"{module_name} has no attribute {part!r}",
                f"did you mean {', '.join(near)}?" if near else _FORM,
            )  # fmt: skip
        target = getattr(target, part)
    return target


def _call(reference: str, target: Any, sizes: Mapping[str, int]) -> Any:
    is_module = isinstance(target, load_torch().nn.Module)
    if not callable(target):
        raise RequestError(
            f"workload {reference!r}", f"a {type(target).__name__} is not callable", _RETURNS
        )
    arguments: Collection[str] = ()
    if not is_module:
        with suppress(TypeError, ValueError):  # a builtin has no signature
            arguments = inspect.signature(target).parameters
    refused = [key for key in sizes if key not in arguments]
    if refused:
        raise RequestError(
            f"workload {reference!r} with {refused[0]}={sizes[refused[0]]}",
            f"its callable has no argument {refused[0]}",
            f"give the callable an argument {refused[0]}, and build its example inputs from it",
        )
    if is_module:
        return target
    with _guarded(reference, "the callable raised", "correct it so that it can be called"):
        return target(**sizes)


@contextmanager
def _guarded(reference: str, raised: str, next_step: str) -> Iterator[None]:
    """Run a user's code: whatever it raises becomes a RequestError, what it prints goes to stderr.

    Raises:
        RequestError: the code raised, also what is no `Exception`, such as SystemExit.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)  # the user's own modules lie in the working directory
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (ForerunError, KeyboardInterrupt):
        raise
    except BaseException as error:
        text = " ".join(str(error).split())[:160]
        message = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise RequestError(f"workload {reference!r}", f"{raised} {message}", next_step) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
