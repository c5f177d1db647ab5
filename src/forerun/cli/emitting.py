"""Emitting: the options of a launch configuration, checked before the answer, and the file behind it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.inputs import FILE, writable, write_text
from forerun.cli.options import force_option, together
from forerun.cli.printing import echo, visible
from forerun.cli.showing import workload_text
from forerun.errors import RequestError
from forerun.paths import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forerun.advisor import Answer
    from forerun.domain.recommendation import Option

emit_options = together(
    click.option(
        "--emit", metavar="TARGET",
        help="Write the launch configuration of the chosen plan, in place of the answer: torchrun, accelerate,"
        " deepspeed, fsdp, megatron, torchtitan, nemo, skypilot, rayjob, slurm or k8s (docs/launching.md).",
    ),
    click.option("--emit-to", type=FILE, metavar="FILE", help="Write it there, and print the answer."),
    click.option("--script", metavar="FILE", help="The training script that --emit starts (train.py)."),
    force_option,
)  # fmt: skip


@dataclass(frozen=True)
class Emission:
    """Which launch configuration is wanted, and where it goes: stdout where `to` is None."""

    target: str
    to: Path | None
    script: str

    def write(self, chosen: Answer | Option) -> str:
        """Write the configuration of a chosen job; return what says where, "" where it is on stdout.

        Raises:
            RequestError: the target cannot run the plan, or the file cannot be written.
        """
        from forerun.launch import LaunchRequest, emit

        words = click.get_current_context().find_root().obj
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        text = visible(emit(LaunchRequest(
            self.target, chosen.job, chosen.estimate, self.script, shlex.join(["forerun", *map(shown, words)]),
            f"{version('forerun')} on {now}", workload_text(chosen.job.workload),
        )))  # fmt: skip
        if self.to is not None:
            write_text(self.to, text)
            return f"launch configuration for {self.target} written to {self.to}"
        click.echo(text, nl=False)
        for warning in chosen.warnings:
            echo(f"warning: {warning}", err=True)
        return ""


def emission(
    given: Mapping[str, Any], options: dict[str, Any], outputs: Mapping[str, Any]
) -> Emission:
    """Return the launch configuration that a command's options ask for; given: those of `emit_options`.

    A target that is a framework's is planned and timed as that framework, unless another is named.
    outputs: what writes to stdout too, by option.

    Raises:
        RequestError: no such target, a stated plan that it cannot run, or a file that cannot be written.
    """
    target, to, force = given["emit"], given["emit_to"], given["force"]
    if target is None:
        named = next(f"--{name.replace('_', '-')}" for name, value in given.items() if value)
        raise RequestError(named, "it belongs to --emit", "give --emit TARGET too")
    from forerun.advisor.answer import plan_fields
    from forerun.catalog.frameworks import framework_of
    from forerun.launch import framework_for, limits_of, refuse

    refuse(target, {**plan_fields(options["plan"]), "task": options["task"] or "pretrain"})
    if (taken := [name for name, value in outputs.items() if value]) and to is None:
        raise RequestError(
            f"--emit {target} with {' and '.join(taken)}", "both go to stdout",
            "name a file for one of them: --emit-to FILE",
        )  # fmt: skip
    writable(to, replace=force)
    if options.get("clusters", ()) is None and not options["providers"]:
        names = (key.partition("=")[::2] for key in limits_of(target).cannot)
        unknown = tuple(value for name, value in names if name == "provider")
        options["exclude"] = (*(options["exclude"] or ()), *unknown) or None
    own, named = framework_for(target), options["framework"]
    if own and named is None:
        options["framework"] = own
    elif own and (meant := framework_of(named)) and meant.profile not in (own, "pytorch"):
        raise RequestError(
            f"--emit {target} with --framework {named}", f"the plan would be chosen and timed as {meant.name}",
            f"leave --framework out, which means {own} here",
        )  # fmt: skip
    return Emission(target, to, given["script"] or "")
