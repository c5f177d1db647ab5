"""SQLite."""
import tempfile

from forerun.store import open_store
from forerun.testing import StoreContract


class TestSqlite(StoreContract):
    def make_store(self):
        return open_store(tempfile.mkdtemp()+"/runs.db")
