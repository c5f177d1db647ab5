"""Image classifiers of the zoo: published sizes, exact scaling with the image, torch's own count."""

from __future__ import annotations

import csv
import math
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from forerun.domain.graph import OpKind, Phase
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.workloads import zoo as zoo_network
from forerun.workloads.zoo import zoo_entry, zoo_names, zoo_workload
from forerun.workloads.zoo.net import Net

CLASSIFIERS = [n for n in zoo_names() if "image classifier" in zoo_entry(n).description]

# torchvision's published table: parameters, and 1e9 multiply-adds at the published image size.
PUBLISHED: dict[str, tuple[int, float]] = {
    "alexnet": (61_100_840, 0.714),
    "vgg11": (132_863_336, 7.609),
    "vgg11-bn": (132_868_840, 7.609),
    "vgg13": (133_047_848, 11.308),
    "vgg13-bn": (133_053_736, 11.308),
    "vgg16": (138_357_544, 15.47),
    "vgg16-bn": (138_365_992, 15.47),
    "vgg19": (143_667_240, 19.632),
    "vgg19-bn": (143_678_248, 19.632),
    "resnet18": (11_689_512, 1.814),
    "resnet34": (21_797_672, 3.664),
    "resnet50": (25_557_032, 4.089),
    "resnet101": (44_549_160, 7.801),
    "resnet152": (60_192_808, 11.514),
    "wide-resnet50-2": (68_883_240, 11.398),
    "wide-resnet101-2": (126_886_696, 22.753),
    "resnext50-32x4d": (25_028_904, 4.23),
    "resnext101-32x8d": (88_791_336, 16.414),
    "resnext101-64x4d": (83_455_272, 15.46),
    "densenet121": (7_978_856, 2.834),
    "densenet161": (28_681_000, 7.728),
    "densenet169": (14_149_480, 3.36),
    "densenet201": (20_013_928, 4.291),
    "googlenet": (6_624_904, 1.498),
    "inception-v3": (27_161_264, 5.713),
    "squeezenet1-0": (1_248_424, 0.819),
    "squeezenet1-1": (1_235_496, 0.349),
    "shufflenet-v2-x0-5": (1_366_792, 0.04),
    "shufflenet-v2-x1-0": (2_278_604, 0.145),
    "shufflenet-v2-x1-5": (3_503_624, 0.296),
    "shufflenet-v2-x2-0": (7_393_996, 0.583),
    "mobilenet-v2": (3_504_872, 0.301),
    "mobilenet-v3-large": (5_483_032, 0.217),
    "mobilenet-v3-small": (2_542_856, 0.057),
    "mnasnet0-5": (2_218_512, 0.104),
    "mnasnet0-75": (3_170_208, 0.215),
    "mnasnet1-0": (4_383_312, 0.314),
    "mnasnet1-3": (6_282_256, 0.526),
    "efficientnet-b0": (5_288_548, 0.386),
    "efficientnet-b1": (7_794_184, 0.687),
    "efficientnet-b2": (9_109_994, 1.088),
    "efficientnet-b3": (12_233_232, 1.827),
    "efficientnet-b4": (19_341_616, 4.394),
    "efficientnet-b5": (30_389_784, 10.266),
    "efficientnet-b6": (43_040_704, 19.068),
    "efficientnet-b7": (66_347_960, 37.746),
    "efficientnet-v2-s": (21_458_488, 8.366),
    "efficientnet-v2-m": (54_139_356, 24.582),
    "efficientnet-v2-l": (118_515_272, 56.08),
    "regnet-x-400mf": (5_495_976, 0.414),
    "regnet-x-800mf": (7_259_656, 0.8),
    "regnet-x-1-6gf": (9_190_136, 1.603),
    "regnet-x-3-2gf": (15_296_552, 3.177),
    "regnet-x-8gf": (39_572_648, 7.995),
    "regnet-x-16gf": (54_278_536, 15.941),
    "regnet-x-32gf": (107_811_560, 31.736),
    "regnet-y-400mf": (4_344_144, 0.402),
    "regnet-y-800mf": (6_432_512, 0.834),
    "regnet-y-1-6gf": (11_202_430, 1.612),
    "regnet-y-3-2gf": (19_436_338, 3.176),
    "regnet-y-8gf": (39_381_472, 8.473),
    "regnet-y-16gf": (83_590_140, 15.912),
    "regnet-y-32gf": (145_046_770, 32.28),
    "convnext-tiny": (28_589_128, 4.456),
    "convnext-small": (50_223_688, 8.684),
    "convnext-base": (88_591_464, 15.355),
    "convnext-large": (197_767_336, 34.361),
    "vit-b-16": (86_567_656, 17.564),
    "vit-b-32": (88_224_232, 4.409),
    "vit-l-16": (304_326_632, 61.555),
    "vit-l-32": (306_535_400, 15.378),
    "swin-t": (28_288_354, 4.491),
    "swin-s": (49_606_258, 8.741),
    "swin-b": (87_768_224, 15.431),
    "swin-v2-t": (28_351_570, 5.94),
    "swin-v2-s": (49_737_442, 11.546),
    "swin-v2-b": (87_930_848, 20.325),
    "maxvit-t": (30_919_624, 5.558),
}
# Published totals of timm and pycls: parameters in millions, 1e9 multiply-adds at 224 pixels.
PUBLISHED_ELSEWHERE = {
    "resnet26": (16.00, 2.36), "resnet200": (64.67, 15.07), "resnet50-d": (25.58, 4.35),
    "resnet101-d": (44.57, 8.08), "se-resnet50": (28.09, 4.11), "se-resnext101-32x4d": (48.96, 8.02),
    "resnext101-32x4d": (44.18, 8.01), "regnet-x-4-0gf": (22.12, 3.99),
    "regnet-x-12gf": (46.11, 12.13), "regnet-y-6-4gf": (30.58, 6.39), "regnet-y-12gf": (51.82, 12.14),
    "vit-s-16": (22.05, 4.61), "vit-ti-16": (5.72, 1.26), "vit-b-8": (86.58, 78.22),
}  # fmt: skip
# Cross-entropy, and what is left out of published counts, stand beside the classifier.
AUXILIARY = ("aux", "AuxLogits")


def skip_without_torchvision() -> None:
    """Skip a comparison where torchvision, or what it is built on, is not installed."""
    missing = [name for name in ("torch", "PIL", "torchvision") if find_spec(name) is None]
    if missing:
        pytest.skip(f"compared with torchvision only where {', '.join(missing)} is installed")


def without_auxiliary(workload: Workload) -> tuple[float, float]:
    """Return parameters and multiply-adds of the forward pass without auxiliary classifiers."""
    main = [
        op for op in workload.graph.ops
        if op.phase is Phase.FORWARD and not op.name.startswith(AUXILIARY)
    ]  # fmt: skip
    return sum(op.params * op.repeat for op in main), sum(op.flops * op.repeat for op in main) / 2


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_and_multiply_adds_are_the_published_ones(name: str) -> None:
    workload = zoo_workload(name)
    params, macs = without_auxiliary(workload)
    published_params, published_gmacs = PUBLISHED[name]
    counted = workload.params if name == "inception-v3" else params  # published with its auxiliary
    assert counted == published_params
    # A table is printed to three decimals; Swin V2's also counts a small network once a batch.
    assert macs / 1e9 == pytest.approx(published_gmacs, rel=0.007, abs=0.0006)


@pytest.mark.parametrize("name", sorted(PUBLISHED_ELSEWHERE))
def test_networks_beyond_torchvision_have_their_published_totals(name: str) -> None:
    workload = zoo_workload(name)
    params, gmacs = PUBLISHED_ELSEWHERE[name]
    assert workload.params / 1e6 == pytest.approx(params, rel=0.002)
    # These counts include pooling or point-wise work, which ours does not.
    assert workload.graph.forward_flops / 2e9 == pytest.approx(gmacs, rel=0.015)


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "regnet-y-8gf", "convnext-tiny"])
def test_convolutions_grow_with_the_pixels_exactly(name: str) -> None:
    small, large = (zoo_workload(name, image_size=s).graph for s in (224, 448))
    kinds = (OpKind.CONV, OpKind.CONV_1X1, OpKind.CONV_GROUPED, OpKind.CONV_DEPTHWISE)
    # A gate's 1 x 1 convolutions see one pixel whatever the image.
    pairs = [
        (a, b) for a, b in zip(small.ops, large.ops, strict=True)
        if a.phase is Phase.FORWARD and a.kind in kinds and ".se." not in a.name
    ]  # fmt: skip
    pairs = [(a, b) for a, b in pairs if a.dims[0] > 1]
    assert pairs
    assert all(b.flops == 4 * a.flops for a, b in pairs)
    assert small.params == large.params


def test_odd_sizes_follow_the_floor_and_ceiling_rules_of_the_layers() -> None:
    ops = {op.name: op for op in zoo_workload("squeezenet1-0", image_size=225).graph.ops}
    assert ops["features.0"].shape == (96, 110, 110)  # floor((225 - 7) / 2) + 1
    assert ops["features.2"].shape == (96, 55, 55)  # ceil((110 - 3) / 2) + 1, starts inside
    assert ops["features.6"].shape[1:] == (27, 27)


def test_an_image_that_is_too_small_is_refused_with_a_way_out() -> None:
    with pytest.raises(RequestError, match="larger image"):
        zoo_workload("alexnet", image_size=20)
    with pytest.raises(RequestError, match="multiple of 16"):
        zoo_workload("vit-b-16", image_size=230)
    with pytest.raises(RequestError, match="multiple of 224"):
        zoo_workload("maxvit-t", image_size=256)


def test_an_auxiliary_classifier_that_does_not_fit_is_left_out_and_said() -> None:
    small = zoo_workload("inception-v3", image_size=224)
    assert any("auxiliary" in note for note in small.notes)
    assert not any(op.name.startswith(AUXILIARY) for op in small.graph.ops)
    assert small.params < zoo_workload("inception-v3").params


def test_pollux_and_other_tables_find_their_networks() -> None:
    for spelling in ("resnet-50", "ResNet50", "wide_resnet50_2", "regnetx-4.0gf", "regnety_016",
                     "gluon_resnet101_v1d", "tf_efficientnet_b3", "mlperf-resnet50"):  # fmt: skip
        assert zoo_workload(spelling).graph.params > 0


def test_the_image_itself_gets_no_gradient() -> None:
    ops = zoo_workload("resnet18").graph.ops
    names = {op.name for op in ops}
    assert "conv1.wgrad" in names
    assert "conv1.dgrad" not in names
    assert {"layer1.0.conv1.wgrad", "layer1.0.conv1.dgrad"} <= names


def test_a_tensor_that_two_operations_keep_is_counted_once() -> None:
    net = Net()
    x = net.conv("a", net.input("", 8, 4, 4), 8, 3)
    left, right = net.conv("b", x, 8, 3), net.conv("c", x, 8, 3)
    net.multiply("d", left, right)
    saved = {op.name: op.saved for op in net.ops}
    assert saved == {"a": 128, "b": 128, "c": 0, "d": 256}


def test_what_is_not_trained_keeps_nothing_and_has_no_backward() -> None:
    net = Net()
    x = net.conv("frozen", net.input("", 3, 8, 8), 4, 3, trainable=False)
    x = net.activation("relu", net.batch_norm("fixed", x, frozen=True))
    net.loss("loss", net.conv("trained", x, 2, 3))
    graph = net.graph("sgd")
    assert [op.saved for op in graph.ops[:3]] == [0, 0, 0]
    backward = [op.name for op in graph.ops if op.phase is Phase.BACKWARD]
    assert backward == ["loss.grad", "trained.wgrad"]
    assert graph.params == 2 * 4 * 9


def test_every_network_has_the_figures_that_it_had_before() -> None:
    """Every id, at two sizes, and every structure of timm: operations, FLOPs, parameters, memory."""
    with (Path(__file__).parent / "zoo_figures.csv").open() as file:
        for row in csv.DictReader(file):
            field, _, value = row["change"].partition("=")
            graph = zoo_workload(row["workload"], **({field: int(value)} if field else {})).graph
            figures = (
                graph.forward_flops, graph.backward_flops, graph.params, graph.saved,
                sum(op.launches * op.repeat for op in graph.ops),
            )  # fmt: skip
            columns = ("forward_flops", "backward_flops", "params", "saved", "launches")
            assert len(graph.ops) == int(row["operations"]), row
            assert figures == pytest.approx([float(row[c]) for c in columns], rel=1e-9), row


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_network_is_whole(name: str) -> None:
    workload = zoo_workload(name)
    columns = workload.graph.columns
    for field in ("flops", "reads", "writes", "weights", "params", "saved", "launches"):
        values = getattr(columns, field)
        assert np.isfinite(values).all()
        assert (values >= 0).all()
    assert workload.params > 0
    assert workload.length is not None
    assert workload.image_size == zoo_entry(name).default_image_size
    ratio = workload.graph.backward_flops / workload.graph.forward_flops
    assert 1.5 <= ratio <= 3
    for position, op in enumerate(workload.graph.ops):
        assert all(0 <= source < position for source in op.inputs), op.name
        if op.dims and op.phase is Phase.FORWARD and op.kind is not OpKind.ATTENTION:
            m, n, k, groups = op.dims
            assert op.flops == pytest.approx(2.0 * m * n * k * groups), op.name
            assert math.prod(op.shape) == m * n * groups, op.name


@pytest.mark.parametrize(
    ("family", "name", "sizes"),
    [
        ("resnet", "resnet18", (224, 160)),
        ("shufflenet", "shufflenet-v2-x0-5", (224, 170)),
        ("squeezenet", "squeezenet1-1", (224, 161)),
        ("convnext", "convnext-tiny", (224, 97)),
        ("inception", "inception-v3", (299, 331)),
        ("efficientnet", "efficientnet-b0", (224, 145)),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torchvision's own, at import
def test_a_replay_counts_what_torch_counts(family: str, name: str, sizes: tuple[int, int]) -> None:
    skip_without_torchvision()
    from scripts.capture_zoo import counted, measure

    for size in sizes:
        assert measure(name.replace("-", "_"), size) == counted(family, name, size)


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5", "efficientnet_b0", "vit_b_32"]
)
@pytest.mark.filterwarnings("ignore")  # torchvision's own, at import
def test_kept_activations_are_those_that_torch_keeps(name: str) -> None:
    skip_without_torchvision()
    import torch

    from scripts.capture_zoo import import_torchvision

    size, batch = 224 if name.startswith("vit") else 64, 2
    model = import_torchvision().models.get_model(name, weights=None).train()
    owned = {
        t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())
    }  # fmt: skip
    kept = {}

    def pack(tensor):  # type: ignore[no-untyped-def]
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in owned:
            kept[memory.data_ptr()] = memory  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(torch.zeros(batch, 3, size, size))
        torch.nn.functional.cross_entropy(logits, torch.zeros(batch, dtype=torch.long))
    elements = sum(memory.nbytes() for memory in kept.values()) / 4 / batch
    ours = zoo_workload(name, image_size=size, precision="fp32").graph.saved
    assert ours == pytest.approx(elements, rel=0.03)


def test_resnet50_is_built_in_forty_milliseconds() -> None:
    def seconds() -> float:
        zoo_network._text.cache_clear()  # reading its data is part of building it
        zoo_network._captured.cache_clear()
        started = time.perf_counter()
        zoo_entry("resnet50").build()
        return time.perf_counter() - started

    assert min(seconds() for _ in range(5)) < 0.040
