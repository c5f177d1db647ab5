"""Said once: facts, pauses and endings that lines of a plain log tell beside its steps."""

from __future__ import annotations

import re

from forerun.measure.logs.series import CHECKPOINT, EVALUATION, RESTART, Fact

_N = r"(\d[\d,]*)"
# (a word that stands in the line, the expression, the fact)
_FACTS: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (word, re.compile(expression, re.IGNORECASE), name)
    for word, expression, name in (
        ("optimization steps", rf"Total optimization steps\s*=\s*{_N}", "total_steps"),
        ("train batch size", rf"Total train batch size [^=]*=\s*{_N}", "global_batch"),
        ("Num examples", rf"Num examples\s*=\s*{_N}", "dataset_size"),
        ("Num Epochs", rf"Num Epochs\s*=\s*{_N}", "total_epochs"),
        ("Accumulation steps", rf"Gradient Accumulation steps\s*=\s*{_N}", "grad_accum"),
        ("global batch size", rf"\bglobal batch size:?\s+{_N}(?!\s*\|)", "global_batch"),
        ("sequence length", rf"\bsequence length:?\s+{_N}", "seq_len"),
        ("total steps", rf"\btotal steps:?\s+{_N}", "total_steps"),
        ("world size", rf"\bworld size:\s+{_N}", "devices"),
        ("Batch size", rf"\bBatch size:\s+{_N} global", "global_batch"),
        ("train_iters", rf"^\W*train_iters \.+ {_N}", "total_steps"),
        ("global_batch_size", rf"^\W*global_batch_size \.+ {_N}", "global_batch"),
        ("micro_batch_size", rf"^\W*micro_batch_size \.+ {_N}", "micro_batch"),
        ("seq_length", rf"^\W*seq_length \.+ {_N}", "seq_len"),
        ("world_size", rf"^\W*world_size \.+ {_N}", "devices"),
        ("tensor_model", rf"^\W*tensor_model_parallel_size \.+ {_N}", "tp"),
        ("pipeline_model", rf"^\W*pipeline_model_parallel_size \.+ {_N}", "pp"),
        ("GPU capacity", r"GPU capacity:\s*(.+?) \(\d+\) with", "device"),
        ("esum", rf"resum\w*\b.*?\b(?:step|iter(?:ation)?)\s*[=:#]?\s*{_N}", "resumed_step"),
        ("oaded checkpoint", rf"loaded checkpoint\b.*?\biteration\s+{_N}", "resumed_step"),
    )
)
_EPOCH = re.compile(r"^\W{0,3}Epoch:?\s+(\d+)\s*/\s*(\d+)\s*:?\s*$")
_EVENTS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"\beval(?:uat\w+|_|\b)|\bvalid(?:at\w+|\b)|\bTest:", re.IGNORECASE), EVALUATION),
    (re.compile(r"\bsav(?:ing|ed)\b|\bcheckpoint\w*\s+(?:saved|written)", re.IGNORECASE), CHECKPOINT),
    (re.compile(r"\bresum(?:e|ed|ing)\b|\bloaded checkpoint\b|\brestart(?:ed|ing)\b"
                r"|\btraining starts at step\b|\*+ Running training \*+", re.IGNORECASE), RESTART),
)  # fmt: skip
_EVENT_WORDS = re.compile(r"eval|valid|test:|sav|checkpoint|resum|restart|training", re.IGNORECASE)
_ENDINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|hipErrorOutOfMemory"
                r"|RESOURCE_EXHAUSTED|ResourceExhaustedError|CUDNN_STATUS_ALLOC_FAILED"
                r"|[Oo]ut of memory: Killed|oom-kill|DefaultCPUAllocator: can't allocate"), "oom"),
    (re.compile(r"DUE TO TIME LIMIT|[Ww]alltime limit|job exceeded .*time"), "timeout"),
    (re.compile(r"^\W*(?:\[\w+\]:)?\s*Traceback \(most recent call last\)|Segmentation fault|core dumped"
                r"|\bKilled\b|SIGKILL|SIGTERM|ChildFailedError|\bexitcode\s*:\s*-?[1-9]"
                r"|Watchdog caught collective operation timeout|KeyboardInterrupt"
                r"|^\W*(?:\[\w+\]:)?\s*[\w.]*(?:Error|Exception)\b:?"), "failed"),
)  # fmt: skip
_END_WORDS = ("rror", "emory", "oom", "illed", "SIG", "xcept", "Traceback", "fault", "core dump",
              "LIMIT", "limit", "exceeded", "exitcode", "EXHAUSTED", "ALLOC_FAILED", "Interrupt",
              "Watchdog")  # fmt: skip
_RANKS = {"ok": 0, "failed": 1, "timeout": 2, "oom": 3}


def facts_in(line: str) -> dict[str, Fact]:
    """Return what a line says once for the whole run."""
    found: dict[str, Fact] = {}
    lowered = line.lower()
    for word, expression, name in _FACTS:
        if word.lower() in lowered and (match := expression.search(line)):
            text = match[1].strip()
            found[name] = text if name == "device" else float(text.replace(",", ""))
    return found


def epoch_in(line: str) -> tuple[int, int] | None:
    """Return the epoch that a line opens, counted from one, and how many there are."""
    match = _EPOCH.search(line) if "poch" in line else None
    return None if match is None else (int(match[1]), int(match[2]))


def event_in(line: str) -> int:
    """Return what a line tells of evaluation, checkpoints and restarts, as bits."""
    if _EVENT_WORDS.search(line) is None:
        return 0
    return sum(bit for expression, bit in _EVENTS if expression.search(line))


class Ending:
    """How a log ends: an error counts where no further step follows it."""

    def __init__(self) -> None:
        self.status, self.reason = "ok", ""

    def line(self, text: str) -> None:
        """Look at one line that is no step."""
        if not any(word in text for word in _END_WORDS):
            return
        for expression, status in _ENDINGS:
            if expression.search(text):
                # The traceback's last line names the error, so of equals the newest one counts.
                if _RANKS[status] >= _RANKS[self.status]:
                    self.status, self.reason = status, text.strip()[:200]
                return

    def went_on(self) -> None:
        """Forget what was seen: a step has followed."""
        self.status, self.reason = "ok", ""
