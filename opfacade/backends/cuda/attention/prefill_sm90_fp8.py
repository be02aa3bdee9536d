"""CUDA prefill for sm_90a with products of fp8, paged and ragged: q, k, v and the weights are e4m3, o is f16 or bf16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.attention import facts as facts_of
from opfacade.backends.cuda.attention import prefill as first
from opfacade.backends.cuda.attention import variant
from opfacade.backends.cuda.attention.prefill import Prefill
from opfacade.backends.cuda.attention.prefill_sm90 import ARCH, MAX_GROUP
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Launcher, Operands, Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.operands import numel
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

DTYPE, HEAD_DIM, OUTPUTS = "f8_e4m3", 128, ("f16", "bf16")
TILE_ROWS, TILE_KEYS = 128, 128
REVISION = 1  # incremented with each change of output bits; tests/data/fingerprints.json
TMA_STEP = 16  # bytes
_PAGE = 8  # tokens of a TMA box
# As in WgmmaFp8Tile of kernels/attention/prefill_sm90/params.h: two tiles of Q, four of K, four of V, two of stored V.
_TILES = 2 + 4 + 4 + 2
_CONTROL = 12288
SHARED_MEMORY = _TILES * TILE_KEYS * HEAD_DIM + _CONTROL


def declines(descriptor: Prefill, target: Target) -> Sequence[Reason]:
    return _unfit(descriptor, target) or [
        *support.shared_memory_reason(SHARED_MEMORY, target),
        *ptxas.reasons(),
        *first.split_reasons(descriptor, target),
    ]


@at_any_size
def _unfit(descriptor: Prefill, target: Target) -> tuple[Reason, ...]:
    other = tuple(support.choice_reason("OPF-S002", "q_dtype", descriptor.query_dtype, (DTYPE,)))
    arch = support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    return (*arch, *(other or _lacks(descriptor)))  # the other reasons do not apply to another dtype of q


def _lacks(descriptor: Prefill) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S002", "dtype of the KV cache", descriptor.kv_dtype, (DTYPE,))
    yield from support.choice_reason("OPF-S002", "o_dtype", descriptor.output_dtype, OUTPUTS)
    yield from support.choice_reason("OPF-S003", "head_dim", descriptor.dim, (HEAD_DIM,))
    yield from variant.narrow_reasons(descriptor)
    yield from support.limit_reason("OPF-S005", "query heads of one kv head", descriptor.group_size, MAX_GROUP)
    if hasattr(descriptor, "paged_kv") and descriptor.paged_kv.page_size % _PAGE:
        hint = "Products of fp8 load by TMA only."
        yield Reason("OPF-S005", "page_size", str(descriptor.paged_kv.page_size), f"a multiple of {_PAGE}", hint)


def needs(descriptor: Prefill, operands: Operands) -> Operands:
    """q, k and v are loaded only by TMA: no stride 0, strides that are multiples of 16 bytes, and page strides that are
    multiples of the head stride."""
    names = {"q", "k_data", "v_data", "k", "v"} & operands.keys()
    if any(numel(operands[name]) == 0 for name in names):
        return operands  # no load
    strict = {name: operands[name]._replace(broadcast=(), step=TMA_STEP) for name in names}
    if hasattr(descriptor, "paged_kv"):
        heads = 3 - descriptor.paged_kv.token_axis
        strict |= {name: strict[name]._replace(multiple=(0, heads)) for name in ("k_data", "v_data")}
    return {**operands, **strict}


def facts(descriptor: Prefill, mode: str) -> support.SpecPairs:
    named = dict(first.facts(descriptor, mode)) | {"o_dtype": descriptor.output_dtype}
    return support.pairs(**named | ({"q_scale": descriptor.q_scale} if descriptor.q_scale != "none" else {}))


def jit_spec(descriptor: Prefill, target: Target) -> Any:
    return spec_of(descriptor, target, first.splits_of(descriptor, target)[0])


def spec_of(descriptor: Prefill, target: Target, mode: str) -> Any:
    constants = facts_of.default_constants(descriptor) | dict(facts(descriptor, mode))
    return support.spec_of(f"attention/prefill_sm90/{descriptor.op}_sm90_fp8", support.pairs(**constants), target)


def sku(descriptor: Prefill, target: Target) -> KernelSku:
    return sku_of(descriptor, target, first.splits_of(descriptor, target)[0])


@cached_by_specialization
def sku_of(descriptor: Prefill, target: Target, mode: str) -> KernelSku:
    known = facts(descriptor, mode)
    identity = facts_of.Identity(descriptor.op, target.arch, "wgmma_fp8_tile", REVISION, known, TILE_KEYS, mode != "off")
    return facts_of.make_sku(identity)


def launcher(descriptor: Prefill, target: Target, identity: KernelSku, allow_build: bool) -> Launcher:
    split = first.splits_of(descriptor, target)
    return first.launcher_of(jit_spec(descriptor, target), descriptor, split, identity, allow_build)
