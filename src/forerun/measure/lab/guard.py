"""Guard: a sleeping shell that learns of its owner's death by a closed pipe, and removes the lab."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from forerun.measure.lab.names import LabId, parse_id

# Read returns at once when the last writer has gone; a word before that is the owner's good-bye.
_SCRIPT = 'read -r word && exit 0; exec "$@"'


class Guard:
    """Removes a lab when the process that made this guard dies without saying good-bye."""

    def __init__(self, lab: LabId) -> None:
        self._process = subprocess.Popen(
            ("sh", "-c", _SCRIPT, str(lab), sys.executable, "-m", __name__, str(lab)),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the owner's terminal must not end it
        )  # fmt: skip

    def dismiss(self) -> None:
        """Say good-bye: the lab has been removed."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(b"done\n")
        self._process.wait()


def main(text: str) -> None:
    """Remove the lab that a guard was made for, unless that has been done."""
    from forerun.measure.lab import removing, state

    lab = parse_id(text)
    if lab is not None and lab.abandoned:
        with state.locked():
            removing.remove(lab)


if __name__ == "__main__":
    main(sys.argv[1])
