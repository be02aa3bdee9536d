"""CUDA attention: wgmma on sm_90a if possible, else mma.sync on sm_80 and later. The device assigns the work."""

from __future__ import annotations

from opfacade.backends.cuda.attention import decode, prefill, sized
from opfacade.backends.cuda.attention import facts as facts_of
from opfacade.backends.cuda.attention import prefill_pieces as pieces
from opfacade.backends.cuda.attention import prefill_sm90 as wgmma
from opfacade.backends.cuda.attention import prefill_sm90_fp8 as fp8
from opfacade.backends.cuda.attention.decode_configs import CONFIGS as DECODE_CONFIGS
from opfacade.backends.cuda.attention.prefill_configs import CONFIGS as PREFILL_CONFIGS
from opfacade.core.candidate import Candidate
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
)

_DEFAULTS = (
    *(
        Candidate(
            "cuda",
            "wgmma_tile",
            kind,
            wgmma.declines,
            wgmma.sku,
            prefill.workspace,
            wgmma.launcher,
            wgmma.jit_spec,
            sized=sized.of_whole_tiles,
        )
        for kind in (BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor)
    ),
    *(
        Candidate(
            "cuda",
            "mma_tile",
            kind,
            prefill.declines,
            prefill.sku,
            prefill.workspace,
            prefill.launcher,
            prefill.jit_spec,
        )
        for kind in (BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor)
    ),
    *(
        Candidate(
            "cuda",
            "wgmma_fp8_tile",
            kind,
            fp8.declines,
            fp8.sku,
            prefill.workspace,
            fp8.launcher,
            fp8.jit_spec,
            needs=fp8.needs,
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
        sized=sized.of_decode,
    ),
)


# Tried first. If they decline because no workspace is allowed or a guarantee is required, candidates of whole tiles serve.
_PIECES = tuple(
    Candidate("cuda", impl, kind, cut.declines, cut.sku, cut.workspace, cut.launcher, cut.jit_spec, needs=needs, sized=answer)
    for impl, cut, needs, answer in (
        ("wgmma_tile", pieces.WGMMA, None, sized.of_pieces),
        ("wgmma_fp8_tile", pieces.FP8, fp8.needs, None),
    )
    for kind in (BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor)
)
_SPLIT_CONFIGS = (variant for base in _DEFAULTS for variant in facts_of.split_configs(base))

CANDIDATES = (*_PIECES, *_DEFAULTS, *_SPLIT_CONFIGS, *DECODE_CONFIGS, *PREFILL_CONFIGS)
