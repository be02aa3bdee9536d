"""Model and shapes of the demo."""

from __future__ import annotations

from typing import Any, Literal

from opfacade.core.dtypes import FloatDType
from opfacade.core.model import Count, Model, Size
from opfacade.core.target import Target

# Small sizes on the CPU, so that sixty real requests finish within a minute; an 8B model's attention on a GPU.
_SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {"heads": 4, "kv_heads": 1, "head_dim": 64, "chunk": 512, "checked_rows": 4, "max_generated": 256, "vocab": 1003},
    "cuda": {
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "chunk": 2048,
        "checked_rows": 16,
        "max_generated": None,
        "vocab": 32003,
    },
}


class Settings(Model):
    """chunk: the tokens that a step may process. pages: the size of the pool; None: half the pages that all requests need.

    max_generated: the limit for the answer of a request; None: no limit.  checked_rows: query rows of an operator call compared
    with the fp64 oracle.  every: steps that share a block of the table; the first one draws tokens.  vocab: logits of a row.
    max_steps: 0: run until all requests are served.
    """

    device: Literal["cpu", "cuda"]
    requests: Size = 64
    heads: Size
    kv_heads: Size
    head_dim: Size
    dtype: FloatDType = "bf16"
    page_size: Size = 16
    pages: Size | None = None
    chunk: Size
    max_generated: Size | None
    max_steps: Count = 0
    checked_rows: Size
    vocab: Size
    every: Size = 32
    seed: Count = 0


def settings(device: str | None = None, **given: Any) -> Settings:
    """The settings for a device, by default the current one; `given` replaces some fields."""
    device = device or ("cpu" if Target.current().is_cpu else "cuda")
    chosen = {name: value for name, value in given.items() if value is not None}
    return Settings.model_validate({"device": device, **_SHAPES.get(device, _SHAPES["cpu"]), **chosen})
