"""Tuning configs of decode with other pipelines, which only a pin or a measurement selects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from opfacade.backends.cuda.attention.decode import declines, is_short, jit_spec, launcher, partition_of, sku, workspace
from opfacade.backends.cuda.attention.decode_block import DEFAULT, DecodeConfig
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.target import Target
from opfacade.plans.attention import BatchPagedDecodeDescriptor


def _differs(config: DecodeConfig, descriptor: BatchPagedDecodeDescriptor, target: Target) -> bool:
    """True if a config applies and differs from the default: clusters for short contexts, warps and CTAs per SM otherwise."""
    default, other = (partition_of(descriptor, target, config) for config in (DEFAULT, config))
    if config.clusters > 1:
        return other.split.clusters == config.clusters and other.split != default.split
    if config.auto:
        return other.split != default.split and not is_short(descriptor, target)
    if descriptor.kv_dtype == "f32" or is_short(descriptor, target) != (config.clusters == 1):
        return False
    return other.block.fits and (other.block.shape, other.split[2:]) != (default.block.shape, default.split[2:])


def config_candidate(name: str, config: DecodeConfig) -> Candidate:
    """Decode with another pipeline, which `opfacade tune` compares with the default."""

    def declining(descriptor: BatchPagedDecodeDescriptor, target: Target) -> Sequence[Reason]:
        reasons = declines(descriptor, target)  # a config accepts no more problems than the default
        if not reasons and not _differs(config, descriptor, target):
            return [Reason("OPF-S017", "config", name, "a descriptor for which it is not the default")]
        return reasons or declines(descriptor, target, config)

    return Candidate(
        "cuda",
        "split_kv",
        BatchPagedDecodeDescriptor,
        declining,
        partial(sku, config=config),
        partial(workspace, config=config),
        partial(launcher, config=config),
        partial(jit_spec, config=config),
        name,
    )


# Equal shares or pieces, if the default partitions otherwise; fewer and more warps; one CTA with a deep pipeline or four with
# shallow ones; smaller clusters or none; one cluster if the default uses several; other numbers of clusters per unit.
CONFIGS = (
    *(config_candidate(f"split={mode}", DecodeConfig(auto=mode)) for mode in ("auto", "pieces")),
    *(config_candidate(f"warps={w},blocks={b}", DecodeConfig(w, b)) for w, b in ((2, 4), (2, 2), (4, 2), (4, 1), (8, 1))),
    *(config_candidate(f"cluster={n}", DecodeConfig(cluster=n, clusters=1)) for n in (1, 2, 4, 8)),
    *(config_candidate(f"teams={n}", DecodeConfig(clusters=n)) for n in (2, 4)),
    config_candidate("cluster=2,teams=8", DecodeConfig(cluster=2, clusters=8)),
)
