"""Batches: the batch that nobody gave is usual for its kind and size, and every replica gets its share."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.domain.workload import LayerShape
from forerun.errors import RequestError
from forerun.search.batches import filled_batch, usual_batch
from forerun.search.space import Space
from forerun.tables import Table
from forerun.testing.samples import tiny_cluster, tiny_workload
from forerun.workloads.zoo import zoo_workload


@pytest.mark.parametrize(
    ("name", "seq_len", "batch"),
    [("llama3-8b", None, 512), ("llama3-8b", 131072, 32), ("llama3-8b", 2048, 512), ("gpt2", None, 512)],
)  # fmt: skip
def test_longer_sequences_keep_the_tokens_of_a_step(
    name: str, seq_len: int | None, batch: int
) -> None:
    """No step of a named model has more tokens than it was trained with."""
    assert usual_batch(zoo_workload(name, seq_len=seq_len))[0] == batch


def test_models_that_nobody_named_take_the_batch_of_their_size() -> None:
    """From half a million tokens to eight; networks of images and rows take 256 samples."""
    nameless = tiny_workload(layers=6, seq_len=2048).with_(default_global_batch=0)
    assert usual_batch(nameless)[0] * 2048 == 2**19
    large = zoo_workload("llama3.1-405b").with_(default_global_batch=0)
    assert usual_batch(large)[0] * large.seq_len == 2**23
    assert usual_batch(zoo_workload("resnet50").with_(default_global_batch=0))[0] == 256
    tuned = large.with_(task="finetune")
    assert usual_batch(tuned) == (128, "usual for finetune")
    assert "give --global-batch" in usual_batch(nameless)[1]


@pytest.mark.parametrize(
    ("batch", "devices", "filled"),
    [(512, 8, 512), (512, 24, 528), (256, 24, 264), (256, 7, 266), (780, 8, 800), (780, 4, 780),
     (64, 512, 64), (512, 1536, 528), (2, 24, 2)],
)  # fmt: skip
def test_a_batch_is_filled_up_to_what_devices_share(batch: int, devices: int, filled: int) -> None:
    """Never smaller, and only a few per cent larger than the devices need."""
    assert filled_batch(batch, devices) == filled


@pytest.mark.parametrize("devices", [1, 3, 6, 8, 12, 24])
@pytest.mark.parametrize("shape", [LayerShape(), tiny_workload(layers=6).shape])
def test_accumulation_is_whole_in_every_searched_plan(shape: LayerShape, devices: int) -> None:
    """micro_batch x dp x accumulation is the global batch, and every number of devices has a plan."""
    asked = tiny_workload(layers=6).with_(shape=shape)
    plans, _ = Space(asked, (tiny_cluster(1, devices),), (500,), filled=True).plans(devices)
    assert len(plans)
    assert not (plans.global_batch % (plans.micro_batch * plans.dp)).any()
    turns = plans.vpp > 1
    passes = plans.global_batch // (plans.micro_batch * plans.dp)
    assert not (passes % plans.pp)[turns].any()


@pytest.mark.parametrize("cluster", ["1x8xh100-sxm-80gb", "3x8xh100-sxm-80gb"])
@pytest.mark.parametrize("name", ["llama3-8b", "resnet50"])
def test_predict_and_recommend_take_one_batch(name: str, cluster: str) -> None:
    """Asked of one cluster they name the same plan, and say where the batch is from."""
    advisor = Advisor()
    answer, found = advisor.predict(name, cluster), advisor.recommend(name, clusters=[cluster])
    assert found.best is not None
    assert answer.job.plan.global_batch == found.best.job.plan.global_batch
    assert any("global batch" in note and "usual" in note for note in answer.notes)
    assert any("global batch" in words and "usual" in words for words in found.assumptions)


def test_what_fits_on_a_device_is_data_parallel_alone() -> None:
    """Where sharding or splitting is forecast a few per cent faster, that is noise."""
    advisor = Advisor()
    for name, cluster in (
        ("resnet50", "1x4xrtx-a4000"), ("gpt2-medium", "1x8xh100-sxm-80gb"),
        ("bert-large", "1x8xa100-sxm-40gb"), ("vit-b-16", "1x8xh100-sxm-80gb"),
    ):  # fmt: skip
        plan = advisor.predict(name, cluster).job.plan
        assert (plan.tp, plan.pp, plan.cp, plan.zero_stage, plan.recompute) == (1, 1, 1, 0, "none")


def test_a_batch_that_devices_cannot_share_out_is_refused_and_in_a_table_warned_of() -> None:
    """A question names the next batch that they can; a row of a table is answered as it stands."""
    advisor = Advisor()
    for ask in (
        lambda: advisor.predict("resnet50", "1x8xa100-sxm-80gb", global_batch=100),
        lambda: advisor.recommend("resnet50", clusters=["1x8xa100-sxm-80gb"], global_batches=[100]),
    ):
        with pytest.raises(RequestError, match="such as 104"):
            ask()
    with pytest.raises(RequestError, match="no multiple of micro_batch x dp"):
        advisor.predict("llama3-8b", "1x8xa100-sxm-80gb", "dp=8,micro_batch=3", global_batch=64)
    row = {"workload": "resnet50", "cluster": "1x8xa100-sxm-80gb", "global_batch": 100}
    answered = advisor.predict_table(Table.from_rows([row]))
    assert np.isfinite(answered.numbers("predicted_step_time_s")).all()
