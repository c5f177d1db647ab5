"""Networks of the zoo that are no image classifiers: published totals, structure, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.domain.graph import OpKind, Phase
from forerun.errors import RequestError
from forerun.workloads.zoo import zoo_entry, zoo_names, zoo_workload

OTHERS = [
    name for name in zoo_names()
    if not zoo_entry(name).chooses_attention
    and "image classifier" not in zoo_entry(name).description
]  # fmt: skip

# Published parameters; what they count and we do not (frozen or not trained) is added.
RESNET50_FROZEN = 9_408 + 212_992  # the stem and the first stage of a detector's ResNet-50
PUBLISHED_PARAMS: dict[str, tuple[float, float, float]] = {  # published, added, tolerance
    "ssd300-vgg16": (35_641_826, 0, 0),
    "retinanet-r50": (34_014_999, RESNET50_FROZEN, 0),
    "faster-rcnn-r50-fpn": (41_755_286, RESNET50_FROZEN, 0),
    "mask-rcnn-r50-fpn": (44_401_393, RESNET50_FROZEN, 0),
    "yolov3": (61_949_149, 0, 0),
    "unet": (31_030_658, 0, 0),
    "stable-diffusion-v1-5": (859_520_964, 0, 0),
    "stable-diffusion-v2": (865_910_724, 0, 0),
    "sdxl": (2_567_463_684, 0, 0),
    "dit-xl-2": (675_129_632, 256 * 1152, 0),  # fixed positions are counted there
    "tacotron2": (28_193_153, 0, 0),
    "clip-vit-b-32": (151_277_313, 0, 0),
    "clip-vit-l-14": (427_616_513, 0, 0),
    "resnet18-cifar10": (11_173_962, 0, 0),
    "lenet-5": (61_706, 0, 0),
    "inception-resnet-v2": (55.84e6, 0, 0.001),
    "whisper-small": (241.7e6, 1500 * 768, 0.001),
    "whisper-large-v2": (1543.3e6, 1500 * 1280, 0.001),
    "wav2vec2-base": (94_396_320, 0, 0.0001),
    "wav2vec2-large": (315_461_792, 0, 0.0001),
    "rnnt": (49.1e6, 0, 0.01),
    "gnmt": (160.7e6, 0, 0.01),
    "waveglow": (268_072_160, 0, 0.001),
    "transformer-xl-base": (192e6, 0, 0.01),
    "neumf-ml20m": (31.8e6, 0, 0.01),
    "lstm-lm-medium": (19.8e6, 0, 0.01),
    "lstm-lm-large": (66e6, 0, 0.01),
    "resnet110-cifar10": (1.7e6, 0, 0.03),
    "unet3d": (31.2e6, 0, 0.01),
}
PUBLISHED_GMACS: dict[str, tuple[float, float]] = {  # 1e9 multiply-adds, tolerance
    "ssd300-vgg16": (34.858, 0.001),
    "yolov3": (32.9, 0.01),
    "dit-xl-2": (118.64, 0.001),
    "dit-s-2": (6.06, 0.002),
    "resnet18-cifar10": (0.5564, 0.01),
    "inception-resnet-v2": (13.18, 0.01),
    "arcface-r100": (12.1, 0.01),
}
# One product makes up most of it, and that one has no data gradient.
MOSTLY_FIRST_LAYER = {"keras-lenet5", "mlp-mnist"}


@pytest.mark.parametrize("name", sorted(PUBLISHED_PARAMS))
def test_parameters_are_the_published_ones(name: str) -> None:
    published, added, tolerance = PUBLISHED_PARAMS[name]
    assert zoo_workload(name).params + added == pytest.approx(published, rel=tolerance, abs=0)


@pytest.mark.parametrize("name", sorted(PUBLISHED_GMACS))
def test_multiply_adds_are_the_published_ones(name: str) -> None:
    published, tolerance = PUBLISHED_GMACS[name]
    graph = zoo_workload(name).graph
    assert graph.forward_flops / 2e9 == pytest.approx(published, rel=tolerance)


def test_retinanet_has_torchvisions_multiply_adds_at_its_mean_image() -> None:
    graph = zoo_workload("retinanet-r50", image_size=800).graph
    assert graph.forward_flops / 2e9 == pytest.approx(151.54, rel=0.001)


@pytest.mark.parametrize("name", OTHERS)
def test_every_network_is_whole(name: str) -> None:
    workload = zoo_workload(name)
    columns = workload.graph.columns
    for field in ("flops", "reads", "writes", "weights", "params", "saved", "launches"):
        values = getattr(columns, field)
        assert np.isfinite(values).all()
        assert (values >= 0).all()
    assert workload.params > 0
    assert workload.length is not None
    assert workload.source
    assert workload.default_global_batch > 0
    if workload.length.unit == "epochs":
        assert workload.dataset_size > 0
    least = 1.3 if name in MOSTLY_FIRST_LAYER else 1.5
    assert least <= workload.graph.backward_flops / workload.graph.forward_flops <= 3
    for position, op in enumerate(workload.graph.ops):
        assert all(0 <= source < position for source in op.inputs), op.name


@pytest.mark.parametrize("name", OTHERS)
def test_every_alias_leads_to_its_network(name: str) -> None:
    for alias in zoo_entry(name).aliases:
        assert zoo_entry(alias).name == name


def test_the_optimizer_leaves_sparse_tables_alone() -> None:
    graph = zoo_workload("dlrm-criteo-1tb").graph
    dense = sum(op.params for op in graph.ops if op.kind is not OpKind.EMBEDDING)
    optimizer = next(op for op in graph.ops if op.phase is Phase.OPTIMIZER)
    assert graph.params > 24e9
    assert optimizer.writes == dense


def test_longer_sound_means_more_steps_and_more_work() -> None:
    short, long = (zoo_workload("rnnt", seq_len=n).graph for n in (600, 1200))
    lstm = {op.name: op for op in long.ops}["encoder.pre.0"]
    assert lstm.launches == 1200 // 3 + 1  # steps follow one another
    assert long.forward_flops > 2 * short.forward_flops  # the joint network grows as a square


def test_a_detector_trains_nothing_below_its_second_stage() -> None:
    ops = zoo_workload("mask-rcnn-r50-fpn").graph.ops
    backward = {op.name.rsplit(".", 1)[0] for op in ops if op.phase is Phase.BACKWARD}
    assert "layer2.0.conv1" in backward
    assert not any(name.startswith(("stem", "layer1")) for name in backward)


def test_latents_that_do_not_halve_are_refused_with_a_size_that_does() -> None:
    with pytest.raises(RequestError, match="ask for 512"):
        zoo_workload("stable-diffusion-v1-5", image_size=500)
    with pytest.raises(RequestError, match="multiple of 32"):
        zoo_workload("unet3d", image_size=100)


def test_a_form_of_attention_that_a_network_has_not_is_refused() -> None:
    with pytest.raises(RequestError, match="part of its structure"):
        zoo_workload("whisper-tiny", fused_attention=False)
    with pytest.raises(RequestError, match="no such optimizer"):
        zoo_workload("yolov3", optimizer="sgdm")


def test_recommenders_have_neither_image_nor_sequence() -> None:
    for name in ("dlrm-criteo-1tb", "wide-deep", "neumf-ml1m"):
        with pytest.raises(RequestError, match="no image_size"):
            zoo_workload(name, image_size=224)
