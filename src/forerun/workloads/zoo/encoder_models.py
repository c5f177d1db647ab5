"""Encoders and encoder-decoders: BERT and its kin, T5 and the first transformers."""

from __future__ import annotations

from typing import Any

from forerun.domain.workload import Length
from forerun.workloads.transformer import ENCODER
from forerun.workloads.zoo.entry import Entry
from forerun.workloads.zoo.model import Model, entries, models

_BERT = {**ENCODER, "vocab": 30522, "seq_len": 512, "fused_attention": False}
_ROBERTA = {**_BERT, "vocab": 50265, "max_positions": 514, "token_types": 1, "pooler": False}
_ALBERT = {**_BERT, "vocab": 30000, "embedding_size": 128, "shared_layers": True}
_ELECTRA = {**_BERT, "pooler": False, "head_outputs": 1, "head_bias": True}
_SQUAD = {
    **_BERT, "seq_len": 384, "mlm_head": False, "pooler": False, "head_outputs": 2, "tied": False,
}  # fmt: skip
_T5 = {
    "kind": "encoder-decoder", "vocab": 32128, "seq_len": 512, "target_len": 114,
    "norm": "rmsnorm", "positions": "relative", "bias": False, "head_dim": 64, "dropout": 0.1,
    "fused_attention": False,
}  # fmt: skip
_FLAN = {**_T5, "gated": True, "tied": False}
_WMT = {
    "kind": "encoder-decoder", "positions": "sinusoidal", "dropout": 0.1, "seq_len": 32,
    "target_len": 32, "fused_attention": False,
}  # fmt: skip
_SQUAD_FIELDS: dict[str, Any] = {
    "precision": "fp16",
    "dataset": "SQuAD 1.1",
    "dataset_size": 88641.0,
    "task": "finetune",
    "length": Length("epochs", 2, "Devlin et al. 2018, section 4.2: 2 to 4 epochs"),
    "default_global_batch": 32,
}

MODELS: tuple[Model, ...] = (
    *models(
        "bert", "Devlin et al. 2018, section 3; published configurations", _BERT,
        (("bert-base", 12, 768, 12, {}), ("bert-large", 24, 1024, 16, {})),
        {"bert-base": ("bert-base-uncased", "bert"), "bert-large": ("bert-large-uncased",)},
        precision="fp16", default_global_batch=256,
    ),
    *models(
        "bert", "Devlin et al. 2018, section 4.2 (question answering on SQuAD)", _SQUAD,
        (("bert-base-squad", 12, 768, 12, {}), ("bert-large-squad", 24, 1024, 16, {})),
        **_SQUAD_FIELDS,
    ),
    *models(
        "bert", "MLCommons Training, BERT reference; Krell et al. 2021, section 3.1 (padding)",
        {**_BERT, "seq_len": 256, "max_positions": 512},
        (("mlperf-bert-large", 24, 1024, 16, {"fused_attention": True}),),
        precision="fp16", optimizer="lamb", dataset="Wikipedia 2020-01-01",
        dataset_size=156725653.0, default_global_batch=448,
        length=Length("samples", 3e6, "MLPerf Training v2.0: 2.4 to 3 million samples"),
        notes=(
            "sequences of at most 512 tokens, without their padding: 256 on average. Code that keeps "
            "it does twice the work: give seq_len 512",
        ),
    ),
    *models(
        "roberta", "Liu et al. 2019; published configurations", _ROBERTA,
        (("roberta-base", 12, 768, 12, {}), ("roberta-large", 24, 1024, 16, {})),
        precision="fp16", default_global_batch=8192,
    ),
    *models(
        "distilbert", "Sanh et al. 2019; published configuration",
        {**_BERT, "token_types": 0, "pooler": False},
        (("distilbert-base", 6, 768, 12, {}),), {"distilbert-base": ("distilbert",)},
        precision="fp16", default_global_batch=4096,
        notes=("the teacher's forward pass of distillation is not counted",),
    ),
    *models(
        "albert", "Lan et al. 2019, table 1; published configurations", _ALBERT,
        (
            ("albert-base", 12, 768, 12, {}),
            ("albert-large", 24, 1024, 16, {}),
            ("albert-xlarge", 24, 2048, 16, {}),
            ("albert-xxlarge", 12, 4096, 64, {}),
        ),
        {"albert-base": ("albert-base-v2",), "albert-large": ("albert-large-v2",),
         "albert-xlarge": ("albert-xlarge-v2",), "albert-xxlarge": ("albert-xxlarge-v2",)},
        precision="fp16", optimizer="lamb", default_global_batch=4096,
    ),
    *models(
        "electra", "Clark et al. 2020, table 6 (the discriminator)", _ELECTRA,
        (
            ("electra-small", 12, 256, 4, {"embedding_size": 128}),
            ("electra-base", 12, 768, 12, {}),
            ("electra-large", 24, 1024, 16, {}),
        ),
        precision="fp16", default_global_batch=256,
        notes=("the generator that trains beside the discriminator is not counted",),
    ),
    *models(
        "t5", "Raffel et al. 2019, section 3.7; published configurations", _T5,
        (
            ("t5-small", 6, 512, 8, {"ffn": 2048}),
            ("t5-base", 12, 768, 12, {"ffn": 3072}),
            ("t5-large", 24, 1024, 16, {"ffn": 4096}),
            ("t5-3b", 24, 1024, 32, {"ffn": 16384, "head_dim": 128}),
            ("t5-11b", 24, 1024, 128, {"ffn": 65536, "head_dim": 128}),
        ),
        optimizer="adafactor", default_global_batch=128,
    ),
    *models(
        "t5", "Chung et al. 2022; published flan-t5 configurations", _FLAN,
        (
            ("flan-t5-small", 8, 512, 6, {"ffn": 1024}),
            ("flan-t5-base", 12, 768, 12, {"ffn": 2048}),
            ("flan-t5-large", 24, 1024, 16, {"ffn": 2816}),
            ("flan-t5-xl", 24, 2048, 32, {"ffn": 5120}),
            ("flan-t5-xxl", 24, 4096, 64, {"ffn": 10240}),
        ),
        optimizer="adafactor", default_global_batch=64,
    ),
    *models(
        "transformer", "Vaswani et al. 2017, table 3 (WMT; sentences taken as 32 tokens)", _WMT,
        (
            ("transformer-base", 6, 512, 8, {"vocab": 37000}),
            ("transformer-big", 6, 1024, 16, {"vocab": 37000, "dropout": 0.3}),
        ),
        optimizer="adam", precision="fp16", dataset="WMT14 en-de", dataset_size=4.5e6,
        default_global_batch=780,
        length=Length("steps", 100000, "Vaswani et al. 2017, section 5.2 (base)"),
    ),
    *models(
        "transformer", "Vaswani et al. 2017 on Multi30k (sentences taken as 32 tokens)", _WMT,
        (("transformer-multi30k", 6, 512, 8, {"vocab": 9521}),),
        optimizer="adam", precision="fp32", dataset="Multi30k", dataset_size=29000.0,
        default_global_batch=128, length=Length("epochs", 100, "usual"),
        notes=("vocabulary and sentence length are assumed, about those of Multi30k en-de",),
    ),
)  # fmt: skip
ENTRIES: dict[str, Entry] = entries(MODELS)
