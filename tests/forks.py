"""Workers that a test starts by itself: forks of one process, which has loaded torch for all of them."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import print_exc

import forerun
from forerun.measure.hosts import free_port, local_host


def printed(script: str, workers: int, *words: str) -> list[str]:
    """Carry a script out on so many workers, with torchrun's variables; return what each has printed."""
    given = {**os.environ, "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1",
             "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(forerun.__file__).parents[1]),
             "GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": str(free_port(local_host()))}  # fmt: skip
    with TemporaryDirectory() as folder:
        run = [sys.executable, "-W", "ignore", __file__, folder, script, *words]
        subprocess.run(run, env=given, timeout=300, check=True)
        return [Path(folder, str(rank)).read_text() for rank in range(workers)]


def _fork(folder: str, script: str, *words: str) -> int:
    gc.disable()  # a recorder has it look through everything, and what is imported stays
    for name in ("torch._dynamo", "torch.nn.parallel", "forerun.measure"):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    workers = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        if not (worker := os.fork()):
            os.environ["RANK"], sys.argv, failed = str(rank), ["-c", *words], 1
            os.dup2(os.open(f"{folder}/{rank}", os.O_CREAT | os.O_WRONLY), 1)
            try:
                exec(compile(script, "script", "exec"), {"__name__": "__main__"})
                failed = 0
            except BaseException:  # noqa: BLE001  (a script may raise anything)
                print_exc()
            sys.stdout.flush()
            os._exit(failed)
        workers.append(worker)
    statuses = [os.waitpid(worker, 0)[1] for worker in workers]
    return int(any(statuses))


if __name__ == "__main__":
    raise SystemExit(_fork(*sys.argv[1:]))
