"""Decode with other pipelines: variants, which only a pin or a measurement chooses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from opfacade.backends.cuda.attention.decode import cut_of, declines, is_short, jit_spec, launcher, sku, workspace
from opfacade.backends.cuda.attention.decode_block import PLAIN, Tuning
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.target import Target
from opfacade.plans.attention import BatchPagedDecodeDescriptor


def _differs(tuning: Tuning, descriptor: BatchPagedDecodeDescriptor, target: Target) -> bool:
    """Whether a variant means something, and something else: clusters where contexts are short, warps and blocks elsewhere."""
    usual, other = (cut_of(descriptor, target, way) for way in (PLAIN, tuning))
    if tuning.teams > 1:
        return other.split.teams == tuning.teams and other.split != usual.split
    if tuning.auto:
        return other.split != usual.split and not is_short(descriptor, target)
    if descriptor.kv_dtype == "f32" or is_short(descriptor, target) != (tuning.teams == 1):
        return False
    return other.block.fits and (other.block.shape, other.split[2:]) != (usual.block.shape, usual.split[2:])


def variant(name: str, tuning: Tuning) -> Candidate:
    """Decode with another pipeline, to be measured against the default: `opfacade tune`."""

    def declining(descriptor: BatchPagedDecodeDescriptor, target: Target) -> Sequence[Reason]:
        reasons = declines(descriptor, target)  # of the default: a variant serves no more than that
        if not reasons and not _differs(tuning, descriptor, target):
            return [Reason("OPF-S017", "variant", name, "a descriptor for which it is not the default")]
        return reasons or declines(descriptor, target, tuning)

    return Candidate(
        "cuda",
        "split_kv",
        BatchPagedDecodeDescriptor,
        declining,
        partial(sku, tuning=tuning),
        partial(workspace, tuning=tuning),
        partial(launcher, tuning=tuning),
        partial(jit_spec, tuning=tuning),
        name,
    )


# Even shares, or pieces, where the default cuts otherwise, fewer and more warps, one block with a deeper pipeline or four with
# a shallow one, and the two of four warps that most have where they are not the default; smaller clusters, none, and one where
# several share a run; and other teams of a run.
VARIANTS = (
    *(variant(f"split={mode}", Tuning(auto=mode)) for mode in ("auto", "pieces")),
    *(variant(f"warps={w},blocks={b}", Tuning(w, b)) for w, b in ((2, 4), (2, 2), (4, 2), (4, 1), (8, 1))),
    *(variant(f"cluster={n}", Tuning(cluster=n, teams=1)) for n in (1, 2, 4, 8)),
    *(variant(f"teams={n}", Tuning(teams=n)) for n in (2, 4)),
    variant("cluster=2,teams=8", Tuning(cluster=2, teams=8)),
)
