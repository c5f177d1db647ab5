"""The catalogue costs a start almost nothing."""

from __future__ import annotations

import subprocess
import sys


def test_a_lookup_loads_neither_yaml_nor_numpy_nor_prices() -> None:
    """Importing the package reads nothing; one device's lookup reads no instance table."""
    code = (
        "import sys, forerun.catalog as c; assert 'csv' not in sys.modules\n"
        "catalog = c.load_catalog(); catalog.device('h100-sxm-80gb')\n"
        "assert not {'yaml', 'numpy', 'importlib.resources'} & set(sys.modules)\n"
        "assert 'instances' not in vars(catalog)\n"
        "import time; start = time.process_time()\n"
        "catalog.cluster('4x8xh100-sxm-80gb'); catalog.devices\n"
        "assert time.process_time() - start < 0.06, time.process_time() - start"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
