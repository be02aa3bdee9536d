"""vLLM's names for the dtype of a cache; None stands for the dtype of the model."""

from __future__ import annotations

import torch

from opfacade.core.dtypes import FloatDType

CACHE_DTYPES: dict[str, FloatDType | None] = {
    "auto": None, "float16": "f16", "bfloat16": "bf16", "fp8": "f8_e4m3", "fp8_e4m3": "f8_e4m3", "fp8_e5m2": "f8_e5m2",
}  # fmt: skip
_FP8 = {"f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}


def fp8_of(name: str) -> torch.dtype | None:
    """The fp8 dtype of a cache that is stored as bytes; None if the cache is not fp8."""
    return _FP8.get(CACHE_DTYPES[name] or "")
