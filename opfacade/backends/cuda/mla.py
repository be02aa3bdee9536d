"""CUDA latent attention for sm_90a: 64 query heads per CTA, latents loaded once as key and value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.attention import facts as facts_of
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Candidate, Launcher, Offer, Reason
from opfacade.core.descriptor import cached_by_specialization, memoize_last
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.mla import BatchMlaDecodeDescriptor

REVISION = 1  # incremented with each change of output bits; tests/data/fingerprints.json
ARCH = "sm_90a"
LATENT, ROPE, MOST_HEADS = 512, 64, 128
# As in kernels/mla/params.h: heads per CTA, tokens per tile, stages, panels of queries and weights, bytes of all other data.
ROWS, TILE, _STAGES, _PANELS, _CONTROL = 64, 32, 5, 5, 6144
_SHARE = 64  # tokens per scheduling tile: kScheduleTile
_SPLIT_RUN_BYTES = 20
_MOST_UNITS = 2**31 - 1


def shared_memory() -> int:
    return _STAGES * TILE * (LATENT + ROPE) * 2 + _PANELS * ROWS * 128 + _CONTROL


def unit_rows(descriptor: BatchMlaDecodeDescriptor) -> int:
    """Rows of a request in the tile: the heads of the first query row, then those of the next, and so on."""
    return descriptor.num_qo_heads * descriptor.q_len


def head_blocks(descriptor: BatchMlaDecodeDescriptor) -> int:
    return -(-unit_rows(descriptor) // ROWS)


def split_of(descriptor: BatchMlaDecodeDescriptor) -> tuple[str, int]:
    """(mode, chunk in tokens)."""
    if isinstance(descriptor.kv_split, str):
        return descriptor.kv_split, 0
    return "fixed", descriptor.kv_split


@memoize_last
def grid_of(descriptor: BatchMlaDecodeDescriptor, target: Target) -> tuple[int, int]:
    """(units, slots per head block), valid for any lengths. A unit is one CTA per head block."""
    return _grid(descriptor, split_of(descriptor), target.sm_count // head_blocks(descriptor))


def _grid(descriptor: BatchMlaDecodeDescriptor, split: tuple[str, int], most: int) -> tuple[int, int]:
    """split: that of the descriptor. most: units that run concurrently."""
    mode, chunk = split
    if mode == "off":
        return descriptor.batch_size, 0
    if mode == "fixed":
        units = facts_of.chunks_bound(descriptor, chunk)
        return units, units
    tiles = descriptor.kv_token_bound // _SHARE + descriptor.batch_size
    units = max(1, min(tiles, most))
    return units, 2 * units


def declines(descriptor: BatchMlaDecodeDescriptor, target: Target) -> Sequence[Reason]:
    return _unfit(descriptor, target) or [
        *support.shared_memory_reason(shared_memory(), target),
        *_excess(descriptor, target),
    ]


@at_any_size
def _unfit(descriptor: BatchMlaDecodeDescriptor, target: Target) -> tuple[Reason, ...]:
    kv, cache = descriptor.kv_dtype, descriptor.paged_kv
    return (
        *support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,)),
        *support.choice_reason("OPF-S002", "dtype of the KV cache", kv, ("f16", "bf16")),
        *support.choice_reason("OPF-S002", "q_dtype", descriptor.query_dtype, (kv,)),
        *support.choice_reason("OPF-S003", "latent_dim", cache.latent_dim, (LATENT,)),
        *support.choice_reason("OPF-S003", "rope_dim", cache.rope_dim, (ROPE,)),
        *support.limit_reason("OPF-S005", "num_qo_heads", descriptor.num_qo_heads, MOST_HEADS),
    )


def _excess(descriptor: BatchMlaDecodeDescriptor, target: Target) -> Iterator[Reason]:
    units, slots = grid_of(descriptor, target)
    most = max(units, slots) * head_blocks(descriptor)
    yield from support.limit_reason("OPF-S006", "work items", most, _MOST_UNITS, facts_of.SPLIT_HINT)


def facts(descriptor: BatchMlaDecodeDescriptor) -> support.SpecPairs:
    said: dict[str, bool | int | str] = {
        "dtype": descriptor.kv_dtype,
        "heads": descriptor.num_qo_heads,
        "window": descriptor.window_left >= 0,
        "soft_cap": descriptor.logits_soft_cap > 0,
        "return_lse": descriptor.return_lse,
        "split": split_of(descriptor)[0],
    }
    if descriptor.sinks:
        said["sinks"] = True
    if descriptor.q_len > 1:
        said |= {"q_len": descriptor.q_len, "causal": descriptor.causal}
    return support.pairs(**said, **support.page_facts(descriptor.paged_kv, descriptor.page_table))


# Facts that a SKU states only if they differ from the default.
_PLAIN: dict[str, bool | int | str] = {"sinks": False, "q_len": 1, "causal": True}


def jit_spec(descriptor: BatchMlaDecodeDescriptor, target: Target) -> Any:
    return support.spec_of("mla/mla_decode", support.pairs(**_PLAIN | dict(facts(descriptor))), target)


@cached_by_specialization
def sku(descriptor: BatchMlaDecodeDescriptor, target: Target) -> KernelSku:
    merges = split_of(descriptor)[0] != "off"
    identity = facts_of.Identity(descriptor.op, target.arch, "latent_tiles", REVISION, facts(descriptor), TILE, merges)
    return facts_of.make_sku(identity)


def workspace(descriptor: BatchMlaDecodeDescriptor, target: Target) -> int:
    """Bytes: partial o and lse of every slot in f32, and one SplitRequest per unit."""
    units, slots = grid_of(descriptor, target)
    return _slot_bytes(descriptor) * slots + units * _SPLIT_RUN_BYTES if slots else 0


def _slot_bytes(descriptor: BatchMlaDecodeDescriptor) -> int:
    return min(unit_rows(descriptor), ROWS) * head_blocks(descriptor) * 4 * (LATENT + 1)


def sized(problem: BatchMlaDecodeDescriptor, target: Target) -> Callable[[BatchMlaDecodeDescriptor], Offer] | None:
    """The grid by the bounds, with its workspace."""
    if _unfit(problem, target) or any(support.shared_memory_reason(shared_memory(), target)):
        return None
    split, blocks, identity, slot = split_of(problem), head_blocks(problem), sku(problem, target), _slot_bytes(problem)
    most = target.sm_count // blocks

    def answer(one: BatchMlaDecodeDescriptor) -> Offer:
        units, slots = _grid(one, split, most)
        if max(units, slots) * blocks > _MOST_UNITS:
            return tuple(_excess(one, target)), None, None
        return (), identity, slot * slots + units * _SPLIT_RUN_BYTES if slots else 0

    return answer


def launcher(descriptor: BatchMlaDecodeDescriptor, target: Target, identity: KernelSku, allow_build: bool) -> Launcher:
    if descriptor.batch_size == 0:
        return support.nothing_to_do
    mode, chunk = split_of(descriptor)
    scalars = (*facts_of.scalars(descriptor), *grid_of(descriptor, target), chunk)
    return support.launcher(jit_spec(descriptor, target), descriptor, identity, allow_build, mode != "off", scalars)


_DEFAULT = Candidate(
    "cuda", "latent_tiles", BatchMlaDecodeDescriptor, declines, sku, workspace, launcher, jit_spec, sized=sized
)
CANDIDATES = (_DEFAULT, *facts_of.split_configs(_DEFAULT))
