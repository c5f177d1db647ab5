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
        "print(time.process_time() - start)"
    )
    taken: list[float] = []
    while min(taken, default=1.0) >= 0.06 and len(taken) < 9:  # a busy machine makes some slower
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        taken.append(float(done.stdout))
    assert min(taken) < 0.06, taken
