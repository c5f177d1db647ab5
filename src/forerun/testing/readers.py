"""ReaderContract: what every reader promises; subclass it, say what yours reads, run pytest."""

# ruff: noqa: D102 (a test's name is its sentence)

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest

from forerun.contracts import Reader
from forerun.domain.workload import Workload
from forerun.errors import RequestError

ODD_REFERENCES = ("", " ", "\n", "no such thing", "../..", "a:b:c", "x" * 5000, "é", "-", "{}")


class ReaderContract(ABC):
    """The exam of a reader; define `make_reader` and the references in a class named `Test...`."""

    @abstractmethod
    def make_reader(self) -> Reader:
        """Return the reader under exam."""

    @abstractmethod
    def good_reference(self) -> str:
        """Return a reference that it reads."""

    @abstractmethod
    def bad_reference(self) -> str:
        """Return a reference of its own form which cannot be read (a missing file, say)."""

    def test_it_has_a_name_and_meets_the_protocol(self) -> None:
        reader = self.make_reader()
        assert isinstance(reader, Reader), "accepts, read or name is missing"
        assert isinstance(reader.name, str), "name is not text"
        assert reader.name, "name is empty"

    def test_it_accepts_what_it_reads(self) -> None:
        assert self.make_reader().accepts(self.good_reference()) is True, "it refuses its own form"

    def test_accepting_never_raises(self) -> None:
        for reference in ODD_REFERENCES:
            answer = self.make_reader().accepts(reference)
            assert isinstance(answer, bool), f"accepts({reference[:20]!r}) is no truth value"

    def test_it_accepts_by_form_and_not_by_content(self) -> None:
        assert self.make_reader().accepts(self.bad_reference()) is True, (
            "whether a reference can be read is found out by read, not by accepts"
        )

    def test_a_workload_has_a_name_and_work_to_do(self) -> None:
        workload = self.make_reader().read(self.good_reference())
        assert isinstance(workload, Workload), "read returned no Workload"
        assert workload.name, "the workload has no name"
        assert workload.graph.forward_flops > 0, "its forward phase has no FLOPs"
        assert workload.graph.backward_flops > 0, "its backward phase has no FLOPs"
        assert workload.params > 0, "it has no parameters"
        assert workload.source, "it does not say where its structure comes from"

    def test_reading_twice_gives_the_same_workload(self) -> None:
        reader = self.make_reader()
        first, second = (reader.read(self.good_reference()) for _ in range(2))
        assert first == second, "two reads differ"

    def test_what_cannot_be_read_is_a_request_error(self) -> None:
        with pytest.raises(RequestError, match=r"."):
            self.make_reader().read(self.bad_reference())
