"""Any option value: an answer or a message, never a defect (exit 1)."""

from __future__ import annotations

import contextlib
import io

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forerun.cli import main

NUMBERS = st.one_of(
    st.sampled_from(["0", "-1", "nan", "inf", "1e30", "1e-30", "2.5", "", " ", "8", "1k", "0x10"]),
    st.integers(-3, 2**70).map(str),
    st.floats().map(str),
    st.text(max_size=8),
)
WORDS = st.one_of(
    st.text(max_size=12), st.sampled_from(["bf16", "fp64", "adam", "none", "'", "%s"])
)
CLUSTERS = st.one_of(
    st.text(max_size=24),
    st.builds(
        "{}x{}x{}".format, NUMBERS, NUMBERS, st.sampled_from(["t4", "a100", "h100-sxm-80gb"])
    ),
    st.builds("{}x{}".format, NUMBERS, st.sampled_from(["aws:p5.48xlarge", "aws:p3.2xlarge@mars"])),
)
PLANS = st.lists(
    st.builds(
        "{}={}".format,
        st.sampled_from(["dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero_stage",
                         "recompute", "sync", "sequence_parallel", "memory_format", "x"]),
        st.one_of(st.integers(-1, 16).map(str), NUMBERS, st.sampled_from(["full", "ps-sync"])),
    ),
    max_size=4,
).map(",".join)  # fmt: skip
LENGTHS = st.sampled_from(["--steps", "--samples", "--tokens", "--epochs"])
OPTIONS = st.one_of(
    st.tuples(st.sampled_from(["--global-batch", "--micro-batch", "--price", "--seq-len",
                               "--image-size", "--dataset-size", "--preemption-rate",
                               "--checkpoint-interval"]), NUMBERS),
    st.tuples(LENGTHS, NUMBERS),
    st.tuples(st.sampled_from(["--precision", "--optimizer", "--framework", "--task", "--market",
                               "--region", "--predictor", "--dataset"]), WORDS),
    st.tuples(st.just("--plan"), PLANS),
)  # fmt: skip


def code_of(*arguments: str) -> tuple[int, str]:
    """Return a command's exit code and what it said on stderr."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = main([*arguments], standalone_mode=False)
    return code, err.getvalue()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["resnet50", "llama3-8b", "bert-base"]),
    st.one_of(st.just("2x8xa100-sxm-80gb"), CLUSTERS),
    st.lists(OPTIONS, max_size=3),
)
@example("llama3-8b", "1x8xa100-sxm-80gb", [("--plan", "ep=3")])
@example("resnet50", "1x8xa100-sxm-80gb", [("--plan", "sync=ps-sync,pp=2")])
def test_predict_answers_or_tells(
    workload: str, cluster: str, options: list[tuple[str, str]]
) -> None:
    arguments = ["predict", workload, "--cluster", cluster, *(x for pair in options for x in pair)]
    code, err = code_of(*arguments)
    assert code in (0, 2, 3), (arguments, err)
    assert err.count("error:") == (code != 0)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(max_size=30))
def test_any_workload_reference_answers_or_tells(reference: str) -> None:
    code, err = code_of("support", "--", reference)
    assert code in (0, 2, 3), err


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["--deadline", "--budget", "--confidence", "--fit-confidence",
                             "--global-batch", "--max-devices", "--epochs"]),
            st.one_of(NUMBERS, st.sampled_from(["24h", "0.9", "$5", "1d12h", "256,512"])),
        ),
        max_size=3,
    )
)  # fmt: skip
def test_recommend_answers_or_tells(options: list[tuple[str, str]]) -> None:
    arguments = ["recommend", "resnet50", "--clusters", "t4,1x8xa100-sxm-80gb",
                 *(x for pair in options for x in pair)]  # fmt: skip
    code, err = code_of(*arguments)
    assert code in (0, 2, 3), (arguments, err)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_any_file_as_a_table_answers_or_tells(content: bytes) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(content)
        code, err = code_of("predict", "--table", str(path))
    assert code in (0, 2, 3), err
