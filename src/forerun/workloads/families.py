"""What the members of an architecture family share, as fields of TransformerSpec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GPT: Mapping[str, Any] = {"dropout": 0.1}
LLAMA: Mapping[str, Any] = {
    "gated": True, "norm": "rmsnorm", "positions": "rope", "bias": False, "tied": False,
}  # fmt: skip
ENCODER: Mapping[str, Any] = {
    "kind": "encoder", "dropout": 0.1, "final_norm": False, "embedding_norm": True,
    "mlm_head": True, "head_bias": True, "max_positions": 512, "token_types": 2, "pooler": True,
}  # fmt: skip
