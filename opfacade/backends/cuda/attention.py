"""CUDA attention: wgmma where it can be (sm_90a), else mma.sync, sm_80 and later. Work is assigned on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opfacade.backends.cuda import attention_decode as decode
from opfacade.backends.cuda import attention_prefill as prefill
from opfacade.backends.cuda import attention_prefill_fp8 as fp8
from opfacade.backends.cuda import attention_prefill_wgmma as wgmma
from opfacade.backends.cuda.attention_decode_variants import VARIANTS as DECODE_VARIANTS
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
)
from opfacade.registry import Candidate, variant_of

_DEFAULTS = (
    *(
        Candidate("cuda", "wgmma_tile", kind, wgmma.declines, wgmma.sku, prefill.workspace, wgmma.launcher, wgmma.jit_spec)
        for kind in (BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor)
    ),
    *(
        Candidate(
            "cuda", "mma_tile", kind, prefill.declines, prefill.sku, prefill.workspace, prefill.launcher, prefill.jit_spec
        )
        for kind in (BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor)
    ),
    *(
        Candidate("cuda", "wgmma_fp8_tile", kind, fp8.declines, fp8.sku, prefill.workspace, fp8.launcher, fp8.jit_spec)
        for kind in (BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor)
    ),
    Candidate(
        "cuda",
        "split_kv",
        BatchPagedDecodeDescriptor,
        decode.declines,
        decode.sku,
        decode.workspace,
        decode.launcher,
        decode.jit_spec,
    ),
)


def _split_otherwise(kv_split: str | int) -> Callable[[Any], Any]:
    """A descriptor that leaves its split to us, with this one."""
    return lambda d: d.model_copy(update={"kv_split": kv_split}).revalidated() if d.kv_split == "auto" else None


# What `opfacade tune` measures against "auto"; the promise of either is no weaker.
_VARIANTS = (
    *(variant_of(base, "split=off", _split_otherwise("off"), {}) for base in _DEFAULTS),
    *(
        variant_of(base, f"chunk={chunk}", _split_otherwise(chunk), {"chunk": chunk})
        for base in _DEFAULTS
        for chunk in (512, 1024, 2048, 4096)
    ),
)

CANDIDATES = (*_DEFAULTS, *_VARIANTS, *DECODE_VARIANTS)
