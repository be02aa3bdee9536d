"""CUDA attention, first generation: mma.sync and cp.async, sm_80 and later. Work is assigned on the device."""

from __future__ import annotations

from opfacade.backends.cuda import attention_decode as decode
from opfacade.backends.cuda import attention_prefill as prefill
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
)
from opfacade.registry import Candidate

CANDIDATES = (
    *(
        Candidate(
            "cuda", "mma_tile", kind, prefill.declines, prefill.sku, prefill.workspace, prefill.launcher, prefill.jit_spec
        )
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
