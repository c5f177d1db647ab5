"""Suspects: the rows of a runs table that look wrong, each with its reason and what to do."""

from forerun.tables.suspects.flags import KINDS, FlagKind, Flags
from forerun.tables.suspects.judging import cleaned, most_memory_bytes, suspects

__all__ = ["KINDS", "FlagKind", "Flags", "cleaned", "most_memory_bytes", "suspects"]
