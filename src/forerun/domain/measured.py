"""Measured: what micro-benchmarks found a device to do, as curves over the size of an operation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from forerun.domain.curves import Curve, sound_numbers
from forerun.domain.exchange import Exchange
from forerun.errors import RequestError


@dataclass(frozen=True)
class Update:
    """What an optimizer's step costs: seconds, more for each parameter tensor and each parameter."""

    step_seconds: float
    tensor_seconds: float
    parameter_seconds: float


@dataclass(frozen=True)
class Measured:
    """What a probe measured of one device with one framework.

    Attributes:
        curves: seconds of operations by `precision/operation`: a matrix product's role
            (`matmul.forward`, `.dgrad`, `.wgrad`; sizes: rows, columns, depth), a convolution's,
            attention (sizes: tokens, head, heads), and what only moves elements, by the framework's
            name of it (`gelu_backward`) or by its class (`elementwise`); sizes: elements, and the
            width of a row where the operation goes by rows. `memory`: one element read and
            written, by the bytes that are gone through in turn.
        forward_call_seconds, backward_call_seconds: of the framework for each operation of a step,
            beside the operation's own call.
        gradient_seconds: of the framework to keep one parameter tensor's gradient.
        step_seconds: of a step beside all of its operations.
        batch_seconds, sample_seconds: of the framework's loader to hand out a batch, and more for
            each of its samples, in the process that trains.
        updates: by optimizer.
        replica_seconds, replica_tensor_seconds, replica_parameter_seconds: what keeping replicas
            alike costs beside the all-reduces: in a step, for a parameter tensor, for a parameter.
        together: how much slower each of n processes on one host is while n compute, from n = 1.
        hosts_together: the same of n hosts (more than 1 where hosts share a machine).
        links: `intra` and `inter`, where they were measured.
        jitter_seconds: standard deviation of the time of a piece of work beyond its share.
        sureness: how much the figures tell of the device, 1 where nothing disturbed the measurement,
            towards 0 on a machine that was busy with other work.
        about: where and when it was measured, with which versions, and its spread: for a reader;
            and the part of a core that it was measured on.
    """

    curves: Mapping[str, Curve]
    forward_call_seconds: float = 0.0
    backward_call_seconds: float = 0.0
    gradient_seconds: float = 0.0
    step_seconds: float = 0.0
    batch_seconds: float = 0.0
    sample_seconds: float = 0.0
    updates: Mapping[str, Update] = field(default_factory=dict)
    replica_seconds: float = 0.0
    replica_tensor_seconds: float = 0.0
    replica_parameter_seconds: float = 0.0
    together: tuple[float, ...] = (1.0,)
    hosts_together: tuple[float, ...] = (1.0,)
    links: Mapping[str, Exchange] = field(default_factory=dict)
    jitter_seconds: float = 0.0
    sureness: float = 1.0
    about: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def threads(self) -> float:
        """Threads of an operation while it was timed; 0 where `about` does not say."""
        return _number(self.about.get("threads"))

    @property
    def cores(self) -> float:
        """Cores that the process got, a part of one under a quota; 0 where `about` does not say."""
        share = _number(self.about.get("cpu_share"))
        return share if self.threads <= 1.0 else self.threads

    def curve(self, precision: str, names: Sequence[str]) -> Curve | None:
        """Return the first curve among names in this precision, else in fp32; None if there is none."""
        for number in (precision, "fp32"):
            for name in names:
                found = self.curves.get(f"{number}/{name}")
                if found is not None:
                    return found
        return None

    def slowdown(self, processes: float, hosts: float) -> float:
        """Return how much slower a process is with so many on its host, on so many hosts."""
        return _between(self.together, processes) * _between(self.hosts_together, hosts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `from_dict` reads them; a sureness of 1 goes without saying."""
        told = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.sureness == 1.0:
            del told["sureness"]
        return {
            **told,
            "curves": {name: curve.to_dict() for name, curve in self.curves.items()},
            "updates": {name: vars(update) for name, update in self.updates.items()},
            "links": {name: link.to_dict() for name, link in self.links.items()},
            "together": list(self.together),
            "hosts_together": list(self.hosts_together),
            "about": dict(self.about),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Measured:
        """Return what `to_dict` wrote.

        Raises:
            RequestError: a field is not known, is missing, or is no positive number.
        """
        try:
            values = dict(data)
            curves = {str(k): Curve.from_dict(c) for k, c in values.pop("curves").items()}
            updates = {
                str(k): Update(**sound_numbers(v)) for k, v in values.pop("updates", {}).items()
            }
            links = {str(k): Exchange.from_dict(v) for k, v in values.pop("links", {}).items()}
            about = {str(k): str(v) for k, v in values.pop("about", {}).items()}
            together, hosts = (
                tuple(sound_numbers(dict(enumerate(values.pop(name, (1.0,))))).values())
                for name in ("together", "hosts_together")
            )
            return Measured(
                curves, updates=updates, links=links, about=about,
                together=together, hosts_together=hosts, **sound_numbers(values),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(
                "figures that a probe measured", f"a part is missing or wrong: {error!r}",
                "measure again (forerun probe), or correct the file",
            ) from None  # fmt: skip


def _number(text: str | None) -> float:
    """Return a number of `about`; 0 where it is none."""
    try:
        value = float(text or 0.0)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0


def _between(values: tuple[float, ...], count: float) -> float:
    """Return the value for a count from 1; straight lines between, the last one's slope beyond."""
    if len(values) == 1:
        return values[0]
    if count > len(values):
        return values[-1] + (values[-1] - values[-2]) * (count - len(values))
    return float(np.interp(count, np.arange(1, len(values) + 1), values))
