"""Tables: the runs table as columns, its files, and Jobs and Runs built on it."""

from forerun.tables.files import read_table, write_table
from forerun.tables.jobs import Jobs, Runs
from forerun.tables.ordering import sorted_runs
from forerun.tables.repeated import configurations
from forerun.tables.schema import COLUMNS, MEASURED, Column
from forerun.tables.table import Table

__all__ = [
    "COLUMNS", "MEASURED", "Column", "Jobs", "Runs", "Table", "configurations", "read_table",
    "sorted_runs", "write_table",
]  # fmt: skip
