"""Rows of networks that hear, speak or translate, and language models that are no transformers."""

from __future__ import annotations

from typing import Any

from forerun.domain.workload import LayerShape, Length
from forerun.workloads.zoo.network import UNVERIFIED, Network, later

_LIBRI: dict[str, Any] = {
    "dataset": "LibriSpeech 960 h", "dataset_size": 281_241.0, "input_bytes": 12.3 * 32e3,
}  # fmt: skip
_LJ: dict[str, Any] = {
    "dataset": "LJSpeech 1.1", "dataset_size": 12_500.0, "input_bytes": 6.6 * 44e3,
    "optimizer": "adam", "family": "speech-synthesis",
}  # fmt: skip


def _whisper(size: str, layers: int, hidden: int, heads: int, *aliases: str) -> Network:
    name = f"whisper-{size}"
    return Network(
        name, "whisper", later("speech", "whisper", name), "Radford et al. 2022",
        f"speech recognition, {layers} + {layers} layers, 30 seconds", sample="sequence",
        size=3000, shape=LayerShape(2 * layers, hidden, heads, heads, 4 * hidden, 51_865),
        optimizer="adamw", dataset="680,000 h of speech", dataset_size=0.0,
        input_bytes=30 * 32e3, length=Length("steps", 2.0**20, "Radford et al. 2022: 2^20 updates"),
        notes=("seq_len is mel frames of 10 ms",), aliases=aliases,
    )  # fmt: skip


def _wav2vec(name: str, layers: int, hidden: int, heads: int) -> Network:
    return Network(
        name, "wav2vec2", later("speech", "wav2vec2", name), "Baevski et al. 2020",
        "speech recognition fine-tuned on characters", sample="sequence", size=16_000 * 15,
        shape=LayerShape(layers, hidden, heads, heads, 4 * hidden, 32), optimizer="adam",
        length=Length("steps", 320e3, "Baevski et al. 2020: 320,000 updates"), batch=128,
        notes=("seq_len is samples of sound, 16,000 a second",), aliases=(f"{name}-960h",),
        **_LIBRI,
    )  # fmt: skip


_SPEECH = (
    _whisper("tiny", 4, 384, 6),
    _whisper("base", 6, 512, 8),
    _whisper("small", 12, 768, 12),
    _whisper("medium", 24, 1024, 16),
    _whisper("large-v2", 32, 1280, 20, "whisper-large", "whisper-large-v1"),
    _wav2vec("wav2vec2-base", 12, 768, 12),
    _wav2vec("wav2vec2-large", 24, 1024, 16),
    Network(
        "rnnt", "rnnt", later("speech", "rnnt"), "MLPerf Training v1.0 on, RNN-T reference",
        "speech recognition, LSTM transducer", sample="sequence", size=1230, optimizer="lamb",
        length=Length("epochs", 50, "MLPerf Training results: 41 to 75 epochs"), batch=2048,
        notes=("seq_len is frames of 10 ms; 1,230 is the mean of LibriSpeech",),
        aliases=("rnn-t", "mlperf-rnnt"), **_LIBRI,
    ),
    Network(
        "deepspeech2", "deepspeech", later("speech", "deepspeech2"), "Amodei et al. 2016",
        "speech recognition, convolutions and LSTMs both ways", sample="sequence", size=350,
        dataset="CMU-ARCTIC", dataset_size=0.0, input_bytes=3.5 * 32e3, batch=32,
        length=Length("samples", 1e6, UNVERIFIED), notes=("seq_len is frames of 10 ms",),
        aliases=("deep-speech-2", "deepspeech-2"),
    ),
    Network(
        "tacotron2", emit=later("synthesis", "tacotron2"), source="Shen et al. 2018",
        description="mel spectrograms from text", sample="sequence", size=566, batch=128,
        length=Length("epochs", 1500, "NVIDIA's published example"),
        notes=("seq_len is mel frames; published rates are often frames a second",),
        aliases=("tacotron-2",), **_LJ,
    ),
    Network(
        "waveglow", emit=later("synthesis", "waveglow"), source="Prenger et al. 2019",
        description="sound from mel spectrograms", sample="sequence", size=8000, batch=80,
        length=Length("epochs", 1000, "NVIDIA's published example"),
        notes=("seq_len is samples of sound; published rates are often these a second",), **_LJ,
    ),
)  # fmt: skip


def _gnmt(name: str, layers: int, *aliases: str) -> Network:
    return Network(
        name, "gnmt", later("text", "gnmt", name),
        "Wu et al. 2016" + ("" if layers == 8 else "; MLPerf Training v0.5 to v0.7"),
        f"translation, {layers} + {layers} LSTM layers of 1024", sample="sequence", size=25,
        shape=LayerShape(2 * layers, 1024, vocab=32_320 if layers == 4 else 32_000),
        optimizer="adam", dataset="WMT16 English-German", dataset_size=4.5e6, input_bytes=200.0,
        length=Length("epochs", 6, "MLPerf Training results: 4 to 9 epochs"), batch=1024,
        notes=("sentences of 25 tokens; published rates are often tokens a second",
               "dataset size is unverified"),
        aliases=aliases,
    )  # fmt: skip


def _lstm(name: str, width: int, vocab: int, tokens: float, epochs: int, *aliases: str) -> Network:
    dataset = "WikiText-2" if "wikitext" in name else "Penn Treebank"
    source = "common teaching example" if "wikitext" in name else "Zaremba et al. 2014"
    return Network(
        name, "lstm", later("text", "lstm_model", name), source,
        f"word language model, 2 LSTM layers of {width}", sample="sequence", size=35,
        shape=LayerShape(2, width, vocab=vocab), optimizer="sgd", dataset=dataset,
        dataset_size=tokens // 35, input_bytes=140.0, length=Length("epochs", epochs, source),
        batch=20, aliases=aliases,
    )  # fmt: skip


def _long(name: str, layers: int, hidden: int, heads: int, size: int, steps: float) -> Network:
    return Network(
        name, "transformer-xl", later("text", "transformer_xl", name), "Dai et al. 2019",
        f"language model with memory, {layers} layers", sample="sequence", size=size,
        shape=LayerShape(layers, hidden, heads, heads, 4 * hidden, 267_735), optimizer="lamb",
        dataset="WikiText-103", dataset_size=103_227_021.0 // size, input_bytes=4.0 * size,
        length=Length("steps", steps, "NVIDIA's published example"), batch=256,
        aliases=(name.replace("-xl-", "xl"), name.replace("transformer-xl", "transformerxl")),
    )  # fmt: skip


_TEXT = (
    _gnmt("gnmt", 4, "mlperf-gnmt", "translation-gnmt", "gnmt-v2"),
    _gnmt("gnmt-8", 8),
    _lstm("lstm-lm-medium", 650, 10_000, 929_589.0, 39, "lstm-ptb-medium"),
    _lstm("lstm-lm-large", 1500, 10_000, 929_589.0, 55, "lstm-ptb-large"),
    _lstm("lstm-wikitext2", 200, 33_278, 2_088_628.0, 40, "lm"),
    _long("transformer-xl-base", 16, 512, 8, 192, 40e3),
    _long("transformer-xl-large", 18, 1024, 16, 384, 16e3),
)

NETWORKS: tuple[Network, ...] = (*_SPEECH, *_TEXT)
