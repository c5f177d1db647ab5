"""Worker: one process of an elastic training: `python -m forerun.measure.elastic.worker CONNECTION TERMS.json`."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forerun.errors import ForerunError
from forerun.measure.elastic.channel import MessageChannel
from forerun.measure.elastic.session import ElasticJob
from forerun.measure.failures import reason_of, status_of
from forerun.measure.loop import load_entry
from forerun.measure.processes import die_with_parent, loading


def main(connection: int, terms: Path) -> int:
    """Run the training function, again after each batch that ran out of memory; return the exit status."""
    die_with_parent()
    faulthandler.enable()
    channel = MessageChannel(Connection(connection))
    job = ElasticJob(json.loads(terms.read_text()), channel)

    def notice(number: int, frame: Any) -> None:
        job.noticed = True

    signal.signal(signal.SIGTERM, notice)
    while True:
        try:
            with loading():
                function = load_entry(job.terms["entry"])
                importlib.import_module("torch._dynamo")  # an optimizer loads it, at first use
            function(job)
            channel.send("ended")
            return 0
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's code may raise anything)
            traceback.print_exc()
            if status_of(error) != "oom" or job.run is None:
                reason = str(error) if isinstance(error, ForerunError) else reason_of(error)
                channel.send("failed", reason=reason)
                return 1
        # Its weights are those of the last step, which others may need; then what it holds is freed.
        job.place = job.run.wait("oom")
        job.run = None
        gc.collect()
        if job.place["is"] == "end":
            return 0


if __name__ == "__main__":
    status = main(int(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a process group whose members have gone would wait at the interpreter's end
