"""Tables: the runs table as columns, its files, and Jobs and Runs built on it."""

from forerun.tables.files import read_table, write_table
from forerun.tables.jobs import RUN_COLUMNS, Jobs, Runs, sorted_runs
from forerun.tables.table import COLUMNS, MEASURED, Column, Table, configurations

__all__ = [
    "COLUMNS", "MEASURED", "RUN_COLUMNS", "Column", "Jobs", "Runs", "Table", "configurations", "read_table",
    "sorted_runs", "write_table",
]  # fmt: skip
