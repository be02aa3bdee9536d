"""CUDA prefill for sm_90a with products of fp8, paged and ragged: q, k, v and the weights are e4m3, o is f16 or bf16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opfacade.backends.cuda import attention_facts as facts_of
from opfacade.backends.cuda import attention_prefill as first
from opfacade.backends.cuda import attention_variant as variant
from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.attention_prefill import Prefill
from opfacade.backends.cuda.attention_prefill_wgmma import ARCH, PLAIN, TILE_ROWS, Tuning
from opfacade.registry import Launcher, Reason
from opfacade.sku import KernelSku
from opfacade.target import Target

DTYPE, HEAD_DIM, OUTPUTS = "f8_e4m3", 128, ("f16", "bf16")
TILE_KEYS = 128
_PAGE = 8  # tokens that the copy engine brings together
# As WgmmaFp8Tile in kernels/attention/prefill_wgmma_params.h: two tiles of rows, four of K and of V, two of V as it comes.
_TILES = 2 + 4 + 4 + 2
_CONTROL = 8192
SHARED_MEMORY = _TILES * TILE_KEYS * HEAD_DIM + _CONTROL


def declines(descriptor: Prefill, target: Target) -> list[Reason]:
    reasons = [*support.choice_reason("OPF-S002", "q_dtype", descriptor.query_dtype, (DTYPE,))]
    if not reasons:
        reasons += [*support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,)), *_lacks(descriptor)]
    if not reasons:
        reasons += [
            *support.shared_memory_reason(SHARED_MEMORY, target),
            *ptxas.reasons(),
            *first.split_reasons(descriptor, target),
        ]
    return reasons


def _lacks(descriptor: Prefill) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S002", "dtype of the KV cache", descriptor.kv_dtype, (DTYPE,))
    yield from support.choice_reason("OPF-S002", "o_dtype", descriptor.output_dtype, OUTPUTS)
    yield from support.choice_reason("OPF-S003", "head_dim", descriptor.dim, (HEAD_DIM,))
    yield from variant.narrow_reasons(descriptor)
    yield from support.limit_reason("OPF-S005", "query heads of one kv head", descriptor.group_size, TILE_ROWS)
    if hasattr(descriptor, "paged_kv") and descriptor.paged_kv.page_size % _PAGE:
        hint = "Only the copy engine loads for products of fp8."
        yield Reason("OPF-S005", "page_size", str(descriptor.paged_kv.page_size), f"a multiple of {_PAGE}", hint)


def facts(descriptor: Prefill, target: Target, tuning: Tuning) -> support.SpecPairs:
    named = dict(first.facts(descriptor, target)) | {"o_dtype": descriptor.output_dtype} | tuning.facts()
    return support.pairs(**named | ({"q_scale": descriptor.q_scale} if descriptor.q_scale != "none" else {}))


def jit_spec(descriptor: Prefill, target: Target, tuning: Tuning = PLAIN) -> Any:
    constants = facts_of.unsaid(descriptor) | dict(facts(descriptor, target, tuning))
    return support.spec_of(f"attention/{descriptor.op}_wgmma_fp8", support.pairs(**constants), target)


def sku(descriptor: Prefill, target: Target, tuning: Tuning = PLAIN) -> KernelSku:
    merges, known = first.splits_of(descriptor, target)[0] != "off", facts(descriptor, target, tuning)
    return facts_of.make_sku(facts_of.Identity(descriptor.op, target.arch, "wgmma_fp8_tile", known, TILE_KEYS, merges))


def launcher(descriptor: Prefill, target: Target, identity: KernelSku, allow_build: bool, tuning: Tuning = PLAIN) -> Launcher:
    return first.launcher_of(jit_spec(descriptor, target, tuning), descriptor, target, identity, allow_build)
