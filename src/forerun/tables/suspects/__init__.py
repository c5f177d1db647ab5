"""Suspects: the rows of a runs table that look wrong, each with its reason and what to do."""

from forerun.tables.suspects.flags import KINDS, POLICY, Flags, Kind
from forerun.tables.suspects.judging import cleaned, suspects
from forerun.tables.suspects.physics import most_memory_bytes

__all__ = ["KINDS", "POLICY", "Flags", "Kind", "cleaned", "most_memory_bytes", "suspects"]
