"""Speech synthesis: Tacotron 2 and WaveGlow."""

from __future__ import annotations

from forerun.domain.graph import Block, OpKind
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.recurrent import embedding, recurrent


def tacotron2(net: Net, size: int) -> tuple[str, ...]:
    """State Tacotron 2 (Shen et al. 2018) on `size` mel frames, about six for each letter."""
    letters = max(5, size // 6)
    x = embedding(net, "encoder.embed", 148, 512, letters)
    x = net.view(x, 512, letters)
    for layer in range(3):
        x = _voice_conv(net, x, f"encoder.conv{layer}", 512, "relu")
    memory = recurrent(net, net.copy(x, "encoder.turn", (letters, 512)), "encoder.lstm", 256,
                       both_ways=True)  # fmt: skip
    keys = net.linear(memory, "attention.memory", 128, bias=False)
    x = net.input(size, 80)
    for layer in range(2):
        x = net.activation(
            net.linear(x, f"prenet.{layer}", 256, bias=False), f"prenet.{layer}.relu"
        )
        x = net.dropout(x, f"prenet.{layer}.dropout")
    x = net.concat("attention.input", (x, net.input(size, 512)), axis=1)
    state = recurrent(net, x, "attention.lstm", 1024)
    context = _location_attention(net, state, keys, memory)
    both = net.concat("decoder.input", (state, context), axis=1)
    out = recurrent(net, both, "decoder.lstm", 1024)
    out = net.concat("decoder.join", (out, context), axis=1)
    net.loss(net.linear(out, "gate", 1), "gate.loss")
    mel = net.linear(out, "mel", 80)
    net.loss(mel, "mel.loss")
    x = net.view(mel, 80, size)
    for layer in range(5):
        x = _voice_conv(net, x, f"postnet.{layer}", 80 if layer == 4 else 512, "tanh")
    net.block = Block.HEAD
    net.loss(net.add("postnet.sum", net.view(mel, 80, size), x))
    return (f"{letters} letters for {size} frames; frames follow one another, 40 launches each",)


def _voice_conv(net: Net, x: Tensor, name: str, out: int, function: str) -> Tensor:
    x = net.batch_norm(net.conv(x, name, out, 5, bias=True), f"{name}.norm")
    return net.dropout(net.activation(x, f"{name}.act", function), f"{name}.dropout")


def _location_attention(net: Net, state: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
    """Location-sensitive attention, a step at a time: energies over all letters."""
    steps, letters = state.shape[0], memory.shape[0]
    query = net.linear(state, "attention.query", 128, bias=False)
    # Two weight maps, convolved over 31 letters to 32 channels, then projected to 128.
    size = steps * letters * 128
    place = net.emit(
        OpKind.MATMUL, "attention.location", (query,), (steps * letters, 128), keep=(query,),
        flops=2.0 * steps * letters * (62 * 32 + 32 * 128), params=62 * 32 + 32 * 128,
        dims=(steps * letters, 128, 32 + 62 * 32 // 128, 1), launches=2 * steps,
    )  # fmt: skip
    energy = net.emit(
        OpKind.ELEMENTWISE, "attention.tanh", (place, query, keys), (steps, letters),
        extra_saved=size, params=128, launches=20 * steps, reads=2 * size,
    )  # fmt: skip
    return net.emit(
        OpKind.ATTENTION, "attention.context", (net.softmax(energy, "attention.softmax"), memory),
        (steps, 512), flops=2.0 * steps * letters * 512, keep=(memory,),
        dims=(steps, 512, letters, 1), launches=steps,
    )  # fmt: skip


def waveglow(net: Net, size: int) -> tuple[str, ...]:
    """State WaveGlow (Prenger et al. 2019) on `size` samples of sound: 12 flows, 512 channels."""
    groups, condition = size // 8, 640
    mel = net.conv_transpose(net.input(80, max(1, size // 256)), "upsample", 80, 1024, 256)
    mel = net.copy(mel, "upsample.crop", (condition, groups))
    x = net.input(8, groups)
    channels = 8
    for flow in range(12):
        if flow and flow % 4 == 0:
            channels -= 2
        name = f"flow{flow}"
        x = net.conv(net.view(x, channels, groups), f"{name}.mix", channels, 1)
        x = _wave_net(net, x, mel, name, channels // 2)
    net.block = Block.HEAD
    net.loss(x)
    return ()


def _wave_net(net: Net, x: Tensor, mel: Tensor, name: str, half: int) -> Tensor:
    y = net.conv(net.channels(x, half), f"{name}.start", 512, 1, bias=True)
    skip: Tensor | None = None
    for layer in range(8):
        label = f"{name}.{layer}"
        a = net.conv(y, f"{label}.in", 1024, 3, 1, 2**layer, bias=True, dilation=2**layer)
        b = net.conv(mel, f"{label}.condition", 1024, 1, bias=True)
        gated = net.emit(
            OpKind.ELEMENTWISE, f"{label}.gate", (a, b), (512, y.shape[1]), extra_saved=a.size,
        )  # fmt: skip
        last = layer == 7
        out = net.conv(gated, f"{label}.out", 512 if last else 1024, 1, bias=True)
        if not last:
            y = net.add(f"{label}.sum", y, net.channels(out, 512))
        part = net.channels(out, 512)
        skip = part if skip is None else net.add(f"{label}.skip", skip, part)
    assert skip is not None
    ends = net.conv(skip, f"{name}.end", 2 * half, 1, bias=True)
    return net.emit(OpKind.ELEMENTWISE, f"{name}.affine", (x, ends), x.shape, keep=(x, ends))
