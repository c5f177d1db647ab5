"""Speech and translation: Whisper, wav2vec 2.0, RNN-T, DeepSpeech 2, Tacotron 2, GNMT."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.graph import Block, OpKind
from forerun.workloads.zoo.attend import encoder_layer
from forerun.workloads.zoo.net import Net
from forerun.workloads.zoo.recurrent import embedding, recurrent


@dataclass(frozen=True, slots=True)
class SpeechShape:
    """Layers, width and heads; of each half where there are two."""

    layers: int
    hidden: int
    heads: int
    vocab: int = 51_865


WHISPERS: dict[str, SpeechShape] = {
    "whisper-tiny": SpeechShape(4, 384, 6),
    "whisper-base": SpeechShape(6, 512, 8),
    "whisper-small": SpeechShape(12, 768, 12),
    "whisper-medium": SpeechShape(24, 1024, 16),
    "whisper-large-v2": SpeechShape(32, 1280, 20),
}
_WHISPER_TEXT = 448


def whisper(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State Whisper (Radford et al. 2022): `size` mel frames (3,000 are 30 seconds)."""
    shape = WHISPERS[name]
    width = shape.hidden
    x = net.conv(net.input(80, size), "encoder.conv1", width, 3, bias=True)
    x = net.conv(net.activation(x, "encoder.gelu1", "gelu"), "encoder.conv2", width, 3, 2,
                 bias=True)  # fmt: skip
    x = net.activation(x, "encoder.gelu2", "gelu")
    memory = net.pointwise(net.copy(x, "encoder.turn", x.shape[::-1]), "encoder.positions")
    for layer in range(shape.layers):
        memory = encoder_layer(net, memory, f"encoder.{layer}", shape.heads, 4 * width)
    memory = net.norm(memory, "encoder.norm")
    x = embedding(net, "decoder.embed", shape.vocab, width, _WHISPER_TEXT)
    x = net.bias(x, "decoder.positions", _WHISPER_TEXT * width)
    for layer in range(shape.layers):
        x = encoder_layer(
            net, x, f"decoder.{layer}", shape.heads, 4 * width, causal=True, memory=memory
        )
    net.block = Block.HEAD
    x = net.norm(x, "decoder.norm")
    net.loss(net.linear(x, "logits", shape.vocab, bias=False, owned=False))
    return (f"transcripts are padded to {_WHISPER_TEXT} tokens",)


WAV2VECS: dict[str, SpeechShape] = {
    "wav2vec2-base": SpeechShape(12, 768, 12),
    "wav2vec2-large": SpeechShape(24, 1024, 16),
}
_WAVE_LAYERS = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))


def wav2vec2(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State wav2vec 2.0 (Baevski et al. 2020) fine-tuned for 32 characters, on `size` samples."""
    shape = WAV2VECS[name]
    x = net.input(1, size)
    for layer, (kernel, stride) in enumerate(_WAVE_LAYERS):
        x = net.conv(x, f"wave.{layer}", 512, kernel, stride, 0)
        if layer == 0:
            x = net.norm(x, "wave.norm", 512)
        x = net.activation(x, f"wave.{layer}.gelu", "gelu")
    x = net.norm(net.copy(x, "wave.turn", x.shape[::-1]), "project.norm")
    x = net.linear(x, "project", shape.hidden)
    y = net.conv(net.view(x, *x.shape[::-1]), "positions", shape.hidden, 128, 1, 64, 16, bias=True)
    y = net.activation(net.view(y, y.shape[1], y.shape[0]), "positions.gelu", "gelu")
    x = net.norm(net.add("positions.sum", x, net.view(y, *x.shape)), "encoder.norm")
    for layer in range(shape.layers):
        x = encoder_layer(
            net, x, f"layer.{layer}", shape.heads, 4 * shape.hidden, pre_norm=False, dropout=True
        )
    net.block = Block.HEAD
    net.loss(net.linear(x, "head", 32), launches=4)
    return ()


def rnnt(net: Net, size: int) -> tuple[str, ...]:
    """State MLPerf's RNN-T on `size` frames of 10 ms (one text token for about 24 of them)."""
    steps, tokens = max(2, size // 3), max(2, size // 24)
    x = net.input(steps, 240)
    for layer in range(2):
        x = net.dropout(recurrent(net, x, f"encoder.pre.{layer}", 1024), f"encoder.drop{layer}")
    x = net.copy(x, "encoder.stack", (steps // 2, 2048))
    for layer in range(3):
        x = net.dropout(
            recurrent(net, x, f"encoder.post.{layer}", 1024), f"encoder.drop{layer + 2}"
        )
    text = embedding(net, "predict.embed", 1023, 512, tokens)
    for layer in range(2):
        text = recurrent(net, text, f"predict.{layer}", 512)
    net.block = Block.HEAD
    audio, text = net.linear(x, "joint.audio", 512), net.linear(text, "joint.text", 512)
    lattice = (audio.shape[0] * (tokens + 1), 512)
    y = net.emit(OpKind.ELEMENTWISE, "joint.sum", (audio, text), lattice)
    y = net.dropout(net.activation(y, "joint.relu"), "joint.dropout")
    net.loss(net.linear(y, "joint.out", 1024), "transducer_loss", launches=4)
    return (f"{tokens} text tokens for {size} frames",)


def deepspeech2(net: Net, size: int) -> tuple[str, ...]:
    """State DeepSpeech 2: two convolutions, five LSTM layers of 800 both ways, 29 letters."""
    x = net.input(1, 161, size)
    for number, (kernel, stride, padding) in enumerate(
        (((41, 11), (2, 2), (20, 5)), ((21, 11), (2, 1), (10, 5)))
    ):
        x = net.conv(x, f"conv{number}", 32, kernel, stride, padding, bias=True)
        x = net.activation(net.batch_norm(x, f"conv{number}.norm"), f"conv{number}.hardtanh")
    channels, bins, steps = x.shape
    x = net.copy(x, "turn", (steps, channels * bins))
    for layer in range(5):
        if layer:
            x = net.norm(x, f"rnn{layer}.norm")
        x = recurrent(net, x, f"rnn{layer}", 800, both_ways=True)
        x = net.add(f"rnn{layer}.sum", net.view(x, steps, 800), net.view(x, steps, 800))
    net.block = Block.HEAD
    net.loss(net.linear(net.norm(x, "head.norm"), "head", 29, bias=False), "ctc_loss", launches=4)
    return ("assumed: LSTM layers of 800, as a common implementation has them",)
