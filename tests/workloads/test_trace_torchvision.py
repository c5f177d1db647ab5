"""Published vision models are traced to their published multiply-adds and parameters."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="tracing needs the torch extra: pip install torch")
pytest.importorskip(
    "PIL", reason="torchvision imports pillow: pip install pillow, then torchvision --no-deps"
)

from benchmarks.zoo_figures import prepare_torchvision  # noqa: E402 - torch may be missing
from forerun.domain.graph import OpKind, Phase  # noqa: E402 - torch may be missing
from forerun.domain.workload import Workload  # noqa: E402 - as above
from forerun.workloads.trace import trace_module  # noqa: E402 - as above

try:
    torchvision = prepare_torchvision()
except ModuleNotFoundError:
    pytest.skip(
        "published models come from torchvision: pip install --no-deps torchvision",
        allow_module_level=True,
    )


def traced(name: str, **arguments: Any) -> Workload:
    with torch.device("meta"):
        net = getattr(torchvision.models, name)(**arguments)
    return trace_module(net, torch.empty(2, 3, 224, 224, device="meta"))


@pytest.mark.parametrize(
    ("name", "gmacs", "params_million"),
    [
        ("resnet50", 4.09, 25.557),
        ("efficientnet_b0", 0.39, 5.289),
        ("mobilenet_v2", 0.30, 3.505),
        ("resnext50_32x4d", 4.23, 25.029),
        ("vgg16", 15.47, 138.358),
    ],
)
def test_multiply_adds_and_parameters_are_the_published_ones(
    name: str, gmacs: float, params_million: float
) -> None:
    graph = traced(name).graph
    assert graph.forward_flops / 2e9 == pytest.approx(gmacs, abs=0.005)
    assert graph.params / 1e6 == pytest.approx(params_million, abs=0.001)
    # Both gradients of every product, less the data gradient of the first.
    assert 1.9 < graph.backward_flops / graph.forward_flops < 2.0
    assert graph.unknown == ()


def test_a_grouped_network_has_no_more_backward_work_than_twice_its_forward_work() -> None:
    graph = traced("mobilenet_v2").graph
    for kind in (OpKind.CONV_DEPTHWISE, OpKind.CONV_1X1):
        forward = graph.total("flops", Phase.FORWARD, kind)
        assert graph.total("flops", Phase.BACKWARD, kind) == pytest.approx(2 * forward)


def test_blocks_of_a_residual_network_are_its_layers() -> None:
    assert traced("resnet50").shape.layers == 16


def test_a_vision_transformer_can_be_divided_by_its_heads() -> None:
    shape = traced("vit_b_16").shape
    assert (shape.layers, shape.hidden, shape.heads, shape.ffn) == (12, 768, 12, 3072)


def test_activations_kept_of_resnet50_are_those_its_gradients_need() -> None:
    """Inputs of convolutions and normalisations, and outputs of ReLU: 21.5 M a sample.

    The image is 0.15 M of them, and the positions of the pooling's maxima 0.4 M.
    """
    assert traced("resnet50").graph.saved == pytest.approx(21.5e6, rel=0.01)
