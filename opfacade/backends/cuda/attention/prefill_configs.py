"""Prefill for sm_90a cut otherwise: variants, which only a pin or a measurement chooses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from opfacade.backends.cuda.attention import prefill as first
from opfacade.backends.cuda.attention import prefill_sm90 as wgmma
from opfacade.backends.cuda.attention.prefill import Prefill
from opfacade.backends.cuda.attention.prefill_sm90 import Tuning, tile_of
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans.attention import BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor


def _differs(tuning: Tuning, descriptor: Prefill) -> bool:
    """Tiles of fewer keys are for a cache as products read it: what is widened comes in halves of the usual tile."""
    usual = tile_of(descriptor.dim, descriptor.kv_dtype).keys
    return tuning.keys != usual and not (tuning.keys and descriptor.kv_dtype in FP8)


def variant(kind: type[Prefill], name: str, tuning: Tuning) -> Candidate:
    """The prefill cut otherwise, to be measured against the default: `opfacade tune`."""

    def declines(descriptor: Prefill, target: Target) -> Sequence[Reason]:
        reasons = wgmma.declines(descriptor, target)
        if not reasons and not _differs(tuning, descriptor):
            return [Reason("OPF-S017", "variant", name, "a descriptor for which it means something")]
        return reasons

    sku, launcher = partial(wgmma.sku, tuning=tuning), partial(wgmma.launcher, tuning=tuning)
    jit_spec = partial(wgmma.jit_spec, tuning=tuning)
    return Candidate("cuda", "wgmma_tile", kind, declines, sku, first.workspace, launcher, jit_spec, name)


# Fewer keys a tile and more stages; and warpgroups that take no turns.
TUNINGS = {"keys=64": Tuning(keys=64), "turns=false": Tuning(turns=False)}
VARIANTS = tuple(
    variant(kind, name, tuning)
    for name, tuning in TUNINGS.items()
    for kind in (BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor)
)
