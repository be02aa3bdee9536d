"""Tuning configs of prefill for sm_90a, which only a pin or a measurement selects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from opfacade.backends.cuda.attention import prefill as first
from opfacade.backends.cuda.attention import prefill_sm90 as wgmma
from opfacade.backends.cuda.attention.prefill import Prefill
from opfacade.backends.cuda.attention.prefill_sm90 import PrefillConfig, tile_of
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans.attention import BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor


def _differs(config: PrefillConfig, descriptor: Prefill) -> bool:
    """Smaller tiles exclude an fp8 cache, whose raw parts are halves of the default tile."""
    default = tile_of(descriptor.dim, descriptor.kv_dtype).keys
    return config.keys != default and not (config.keys and descriptor.kv_dtype in FP8)


def config_candidate(kind: type[Prefill], name: str, config: PrefillConfig) -> Candidate:
    """A config that `opfacade tune` compares with the default."""

    def declines(descriptor: Prefill, target: Target) -> Sequence[Reason]:
        reasons = wgmma.declines(descriptor, target)
        if not reasons and not _differs(config, descriptor):
            return [Reason("OPF-S017", "config", name, "a descriptor for which it means something")]
        return reasons

    sku, launcher = partial(wgmma.sku, config=config), partial(wgmma.launcher, config=config)
    jit_spec = partial(wgmma.jit_spec, config=config)
    return Candidate("cuda", "wgmma_tile", kind, declines, sku, first.workspace, launcher, jit_spec, name)


# Fewer keys per tile and more stages; no ping-pong.
PREFILL_CONFIGS = {"keys=64": PrefillConfig(keys=64), "turns=false": PrefillConfig(ping_pong=False)}
CONFIGS = tuple(
    config_candidate(kind, name, config)
    for name, config in PREFILL_CONFIGS.items()
    for kind in (BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor)
)
