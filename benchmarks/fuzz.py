"""Mutated inputs of every verb: all end in an answer (0), a wrong request (2) or no solution (3).

`fuzz.py [IN_PROCESS] [PROCESSES] [SEED]`, 50,000 and 500 by default. An end of another kind, or one
that takes more than LIMIT_SECONDS of a processor, is printed with its files' folder, and makes the exit code 1.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from forerun.cli import main
from forerun.store import open_store
from forerun.tables import read_table

LIMIT_SECONDS = 60
WAIT_SECONDS = 900  # of a process that others keep from a processor, or that waits for ever
ENDS = (0, 2, 3)
NASTY = (
    b"", b"-1", b"0", b"nan", b"inf", b"-inf", b"1e999", b"1e18", b"1e300", b"9" * 400, b"1e-300", b"2.5",
    b"null", b"true", b"[]", b"[1, 2]", b"{}", b'{"a": 1}', b"'", b'"', b",", b";", b"=", b":", b"\n", b"\r",
    b"\t", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[31m", "\u202e".encode(), b"a" * 300, b"../..", b"%s",
    b"store:", b"8x8xt4", b"resnet50", b"h100-sxm-80gb", b"9999-12-31", b"&a", b"*a", b"- ", b"1_000", b"0x10",
)  # fmt: skip
RUNS = "workload,device,nodes,devices,global_batch,framework,precision,price_usd_per_hour,step_time_s\n" + "".join(
    f"{net},{device},1,{n},{32 * n},pytorch,fp16,{2 * n},{0.1 + 0.01 * i + 0.02 * n}\n"
    for i, net in enumerate(("resnet50", "mynet")) for device in ("v100-sxm2-16gb", "mycard") for n in (1, 2, 4, 8)
)  # fmt: skip
FILES: dict[str, str] = {
    "runs.csv": RUNS,
    "jobs.csv": (
        "workload,device,nodes,devices,global_batch,dp,tp,plan,interconnect,node_gbps,epochs,placement\n"
        "resnet50,a100-sxm-80gb,1,8,256,,,,NVLink 600 GB/s,100,90,\n"
        "llama3-8b,h100-sxm-80gb,4,32,512,16,2,,InfiniBand 400 Gb/s,,,8-8-8-8\n"
        "bert-base,v100-sxm2-16gb,1,1,8,,,zero_stage=1,,,3,\n"
    ),
    "spec.yaml": (
        "name: mine\ntransformer: {layers: 12, hidden: 768, heads: 12, vocab: 50257, seq_len: 1024}\n"
        "precision: fp16\ndataset: {name: web, size: 1000}\nlength: {unit: epochs, count: 3}\nglobal_batch: 64\n"
    ),
    "operations.yaml": (
        "operations:\n  - {name: stem, kind: conv, flops: 2.4e8, reads: 150528, writes: 802816, params: 9408,\n"
        "     dims: [12544, 64, 147], saved: 150528}\nprecision: fp32\nglobal_batch: 32\n"
    ),
    "config.json": json.dumps({
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 32000,
        "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }, indent=1),
    "vit.json": json.dumps({
        "model_type": "vit", "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3,
        "intermediate_size": 768, "image_size": [224, 224], "patch_size": 16,
    }, indent=1),
    "catalog.yaml": (
        "devices:\n  my-card:\n    memory_gb: 48\n    memory_gb_per_s: 960\n    fp32_tflops: 60\n"
        "    fp16_tflops: 240\n    watts: 300\n    link_gb_per_s: 0\n    host_gb_per_s: 32\n"
        "    devices_per_node: 8\n    source: data sheet of May\n    field_sources: {watts: estimate}\n"
        "instances:\n  mycloud:big.8x: {device: my-card, device_count: 8, region: here,"
        " dollars_per_hour: 9.5, nic_gbit_per_s: 400, nic_kind: infiniband}\n"
    ),
    "campaign.yaml": (
        "name: two\nworkloads:\n  mlp: {entry: 'nothing.here:mlp'}\n  own: {entry: train.py, arguments: ['--batch',"
        " '{batch_per_worker}']}\nvary:\n  workers: [1, 2]\n  global_batch: [16, 32]\n  dataset_size: [1024]\n"
        "leave_out: ['workers=2 and global_batch=16']\nsteps: {warmup: 3, least: 20, most: 200, half_width: 3%,"
        " seconds: 30s}\nrepeats: 2\ntimeout: 10min\nbudget: {time: 1h, dollars: 5}\n"
        "price_usd_per_worker_hour: 0.05\ndevice: my-cpu\nasked: {node_gbps: 10}\n"
    ),
    "train.py": "print('a script that is never run')\n",
    "log.jsonl": "".join(
        json.dumps({"step": i, "time": 1.7e9 + 2 * i, "loss": 3 - i / 50, "epoch": i / 20, "lr": 1e-3}) + "\n"
        for i in range(1, 41)
    ),
    "run.log": "".join(
        f"2026-01-01 00:{i // 30:02d}:{2 * i % 60:02d} INFO step {i}/100 loss {3 - i / 50:.3f} lr 0.001"
        f" 2.0 s/it 120 tokens/s\n" for i in range(1, 41)
    ),
    "state.json": json.dumps({"max_steps": 100, "num_train_epochs": 3, "log_history": [
        {"step": i, "epoch": i / 30, "loss": 2.0, "train_runtime": 3.0 * i} for i in range(1, 30)
    ]}),
    "trace.json": json.dumps({"traceEvents": [
        {"ph": "X", "name": f"ProfilerStep#{i}", "ts": 1000 * i, "dur": 900, "pid": 1, "tid": 1, "cat": "cpu_op"}
        for i in range(1, 12)
    ]}),
    "settings.toml": "predictor = 'analytic'\nconfidence = 0.5\nregion = ''\nmax_devices = 64\ncolor = 'never'\n",
}  # fmt: skip
# The words of a command; one that names a file of `FILES` may get a mutated copy, others are changed
# themselves. The number is how often it comes: what takes long comes seldom.
COMMANDS: tuple[tuple[int, str], ...] = (
    (40, "predict --table jobs.csv"), (10, "predict --table jobs.csv --json --epochs 3"),
    (20, "predict resnet50 --cluster 1x8xa100-sxm-80gb --global-batch 256 --precision bf16 --steps 1000"),
    (10, "predict llama3-8b --cluster 2x8xh100-sxm-80gb --plan tp=2,pp=2,micro_batch=1 --global-batch 64 --json"),
    (10, "predict bert-base --cluster 2xaws:p5.48xlarge --spot --deadline 24h --budget $5000 --tokens 1B"),
    (30, "predict spec.yaml --cluster 1x8xa100-sxm-80gb --plan dp=8"),
    (20, "predict operations.yaml --cluster 1x8xa100-sxm-80gb --plan dp=8"),
    (30, "predict config.json --cluster 1x8xa100-sxm-80gb --plan dp=8 --seq-len 1024"),
    (15, "predict vit.json --cluster 1x8xa100-sxm-80gb --plan dp=8 --framework pytorch --optimizer adam"),
    (25, "predict resnet50 --cluster 1x8xmy-card --catalog catalog.yaml --plan dp=8 --global-batch 256"),
    (30, "predict resnet50 --cluster 1x8xv100-sxm2-16gb --model model.json --plan dp=8 --global-batch 256"),
    (4, "predict --table jobs.csv --fit runs.csv --predictor ernest --flags flags.csv"),
    (4, "explain resnet50 --cluster 1x8xa100-sxm-80gb --plan dp=8 --global-batch 256 --trace trace_out.json"),
    (2, "recommend resnet50 --clusters 1x8xa100-sxm-80gb,1x8xt4 --deadline 24h --confidence 0.9 --html r.html"),
    (2, "recommend spec.yaml --clusters 1x8xa100-sxm-80gb --minimize time --epochs 1"),
    (20, "support config.json --precision fp8"), (20, "support spec.yaml"),
    (10, "fit --runs runs.csv --predictor ernest --out fitted.json --force"),
    (2, "fit --runs runs.csv --predictor goodput --out fitted.json --force --flags flags.csv"),
    (1, "fit --runs runs.csv --predictor analytic --out fitted.json --force --start priors"),
    (2, "fit --runs runs.csv --predictor constant-mfu --out fitted.json --force --json"),
    (4, "evaluate --runs runs.csv --predictors ernest,linear-scaling --split random --folds 2"),
    (4, "evaluate --runs runs.csv --predictors linear-scaling --split from:devices=1,2 --where devices<=8"),
    (2, "leaderboard --runs runs.csv --predictors linear-scaling --splits random --cache board.jsonl"),
    (3, "suggest --candidates jobs.csv --runs runs.csv --predictor ernest --budget 100"),
    (1, "suggest resnet50 --clusters 1x8xt4 --count 1 --campaign next.yaml --entry resnet50=train.py"),
    (3, "search --replay runs.csv --searcher random --max-runs 3 --where devices<=8 --minimize time"),
    (25, "profile campaign.yaml --dry-run --store made.db"), (5, "profile campaign.yaml --dry-run --json --store made.db"),
    (30, "eta log.jsonl --total-steps 100 --as-of last"), (20, "eta run.log --total-steps 100 --deadline 6h --json"),
    (15, "eta state.json --epochs 3 --price 5 --seed 1"), (15, "eta trace.json --total-steps 50 --reader kineto"),
    (10, "eta run.log --epochs 2 --steps-per-epoch 50 --pattern step.(?P<step>[0-9]+) --as-of 2026-01-01T01:00"),
    (15, "runs import runs.csv --store made.db --campaign night --with framework=pytorch"),
    (15, "runs import log.jsonl --store made.db --with workload=resnet50 --target loss=2.5"),
    (10, "runs import run.log --store made.db"), (20, "runs list --store kept.db --limit 5 --where device=t4"),
    (10, "runs list --store kept.db --columns workload,devices --json"), (10, "runs show abcdefgh --store kept.db"),
    (10, "runs export --store kept.db --out exported.csv --force --where devices<=4"),
    (10, "runs remove --store kept.db --where devices=8"), (5, "fit --runs kept.db --predictor ernest --out f.json --force"),
    (10, "runs artifacts list --store kept.db --kind model"), (5, "runs artifacts get runs.csv --store kept.db --out got --force"),
    (5, "runs artifacts put runs.csv --store made.db --seed 3"),
    (5, "devices a100 --catalog catalog.yaml"), (5, "instances --catalog catalog.yaml"), (5, "workloads bert"),
    (5, "predictors ernest"), (3, "predictors --constants --search matmul"), (5, "systems ernest"), (3, "lab status"),
)  # fmt: skip


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return a content with one to three changes: of bytes, of words, or of whole lines."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        kind, at = draw.random(), draw.randrange(len(content) + 1)
        words = [i for i, byte in enumerate(content) if byte in b" ,:=\n\"'[{xX/"]
        if kind < 0.5 and words:  # a word becomes another
            begin = draw.choice(words) + 1
            end = next((i for i in words if i >= begin), len(content))
            content = content[:begin] + draw.choice(NASTY) + content[end:]
        elif kind < 0.6:
            content = (
                content[:at] + bytes([draw.randrange(256)]) + content[at + draw.choice((0, 1)) :]
            )
        elif kind < 0.7:
            content = content[:at] + draw.choice(NASTY) + content[at:]
        elif kind < 0.8:
            content = content[:at] + content[at + draw.choice((1, 4, 40, len(content))) :]
        else:
            lines = content.split(b"\n")
            i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
            lines[i] = draw.choice((lines[j], b"", lines[i] * 2, lines[i] + lines[j]))
            content = b"\n".join(lines)
    return content


def changed_number(content: bytes, draw: random.Random) -> bytes:
    """Return JSON with one value of it changed, whole otherwise."""
    data = json.loads(content)
    at, key = data, draw.choice([*data])
    while isinstance(at[key], dict | list) and at[key] and draw.random() < 0.9:
        at = at[key]
        key = draw.choice([*at]) if isinstance(at, dict) else draw.randrange(len(at))
    value = at[key]
    other = [None, True, "x", -1, 0, 1e300, float("nan"), [], {}, [1, 2], 10**400]
    if isinstance(value, int | float):
        other += [-value, value * 1e3, value * 1e30, value / 7]
    at[key] = draw.choice(other)
    with contextlib.suppress(ValueError):  # more digits than Python writes
        return json.dumps(data).encode()
    return content


def prepared(folder: Path) -> dict[str, bytes]:
    """Write the whole inputs, a model and a store into a folder; return their contents by name."""
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    fit = "fit --runs runs.csv --predictor ernest --out model.json"
    code, said = in_process(fit.split())
    assert code == 0, said
    with open_store("kept.db") as store:
        store.add_table(read_table("runs.csv"))
        store.artifacts.put("runs.csv", Path("runs.csv"))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def asked(whole: dict[str, bytes], draw: random.Random) -> tuple[list[str], dict[str, bytes]]:
    """Return the words of one command and the mutated files that it reads, most often one of them."""
    words = draw.choices([c for _, c in COMMANDS], [n for n, _ in COMMANDS])[0].split(" ")
    named = [word for word in words if word in whole]
    files: dict[str, bytes] = {}
    if named and draw.random() < 0.75:
        name = draw.choice(named)
        change = changed_number if name.endswith(".json") and draw.random() < 0.6 else mutated
        files[name] = change(whole[name], draw)
    elif draw.random() < 0.05:
        files["settings.toml"] = mutated(whole["settings.toml"], draw)
    else:
        i = draw.randrange(1, len(words))
        given = [j for j in range(1, len(words)) if words[j - 1].startswith("--") or j == 1]
        i = draw.choice(given) if given and draw.random() < 0.8 else i
        words[i] = os.fsdecode(mutated(os.fsencode(words[i]), draw).replace(b"\0", b""))
        if draw.random() < 0.05:
            words.insert(i, draw.choice(words))
    return words, files


def in_process(words: list[str]) -> tuple[int, str]:
    """Return a command's exit code and what it said on stderr, in this process."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = main(words, standalone_mode=False)
    return code, err.getvalue()


def as_process(words: list[str]) -> tuple[int, str]:
    """Return the same of a process of its own."""
    command = [sys.executable, "-m", "forerun", *words]
    done = subprocess.run(command, capture_output=True, check=False, timeout=WAIT_SECONDS)
    return done.returncode, done.stderr.decode(errors="replace")


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {LIMIT_SECONDS} s of a processor, or {WAIT_SECONDS} s in all")


def thrown(
    run: Callable[[list[str]], tuple[int, str]], count: int, whole: dict[str, bytes],
    draw: random.Random,
) -> tuple[Counter[int], list[str]]:  # fmt: skip
    """Throw so many mutated inputs; return how they ended, and what ended otherwise than it may."""
    here, ends, broken = Path.cwd(), Counter[int](), list[str]()
    for _ in range(count):
        words, files = asked(whole, draw)
        for name, content in files.items():
            (here / name).write_bytes(content)
        signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
        signal.alarm(WAIT_SECONDS)
        try:
            code, said = run(words)
        except (Exception, SystemExit, subprocess.TimeoutExpired) as error:  # noqa: BLE001
            code, said = 1, f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        ends[code] += 1
        if code not in ENDS or (code == 0) != ("error: " not in said):
            kept = Path(tempfile.mkdtemp(prefix="forerun-fuzz-"))
            for name in files:
                shutil.copy(here / name, kept)
            broken.append(f"exit {code} in {kept}: {words!r}\n{said[-600:]}")
            print(broken[-1], flush=True)
        for path in here.iterdir():  # what was changed or made
            if path.name in files or path.name not in whole:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name in {*files, "kept.db"}:
            (here / name).write_bytes(whole[name])
    return ends, broken


def fuzz(count: int, processes: int, seed: int) -> int:
    """Throw mutated inputs, in this process and as processes; return how many ended otherwise."""
    draw, bad = random.Random(seed), 0
    for limit in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(limit, _too_long)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for variable in [v for v in os.environ if v.startswith("FORERUN_")]:
            del os.environ[variable]
        os.environ |= {"HOME": str(folder / "home"), "FORERUN_CONFIG": str(folder / "settings.toml"),
                       "XDG_CACHE_HOME": str(folder / "cache"), "FORERUN_DEBUG": "1"}  # fmt: skip
        os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)
        os.chdir(folder)
        whole = prepared(folder)
        for words, run, n in (
            ("in process", in_process, count),
            ("as processes", as_process, processes),
        ):
            began = time.perf_counter()
            ends, broken = thrown(run, n, whole, draw)
            seconds = time.perf_counter() - began
            print(
                f"{n:,} mutated inputs {words} in {seconds:,.0f} s: exit codes {dict(sorted(ends.items()))}"
            )
            bad += len(broken)
        os.chdir("/")
    return bad


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    sys.exit(min(fuzz(*(given + [50_000, 500, 0][len(given) :])), 1))
