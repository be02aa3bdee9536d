"""Products whose weight has codes of four bits, for GPUs before sm_90: mma.sync in place of wgmma, and copies by threads in
place of TMA. Compiled and emulated; no such GPU has measured them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from opfacade.backends.cuda import matmul_coded, matmul_codes, support
from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul_kernel import Form, candidate
from opfacade.backends.cuda.matmul_segments import Segments
from opfacade.core.candidate import Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.target import Target
from opfacade.plans.matmul import MatmulDescriptor

ARCHS = ("sm_80", "sm_86", "sm_89")
_STAGE = 256  # elements of k
_LEAST = 1024  # elements of k that two segments have
_FEW, _MANY = 16, 64  # rows of a tile
_CODES, _SUMS = 64 * 128, 64 + 4  # bytes of codes in a stage; floats of a row of partial sums
_STAGES = 2

_TEST = "tests/families/matmul/test_copied_codes.py::test_a_row_has_its_bits_in_any_batch"
_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/copied_codes",
    impl="mma_codes",
    in_any_batch={"codes": _TEST},
    on_a_gpu="tests/families/matmul/test_copied_codes.py::test_it_keeps_its_bound",
)


class Copied(NamedTuple):
    """rows: of x in a tile; along: warpgroups of a CTA that have a segment of k each."""

    rows: int
    along: int
    segments: Segments | None
    slot: int
    repack: bool = False

    @property
    def shared(self) -> int:
        """Bytes, as CodedShared has them."""
        team = _STAGES * (_CODES + self.rows * _STAGE * 2) + 32 * _STAGES
        return self.along * (team + min(self.rows, 32) * _SUMS * 4)

    def facts(self) -> dict[str, Fact]:
        found: dict[str, Fact] = {"tile_rows": self.rows, "tile_columns": 64}
        found |= {"along": self.along} if self.along > 1 else {}
        found |= {"segment": self.segments.length} if self.segments is not None else {}
        return found | ({"slot": self.slot} if self.slot else {})

    def printed(self) -> dict[str, Fact]:
        shape: dict[str, Fact] = {"tokens": self.rows, "along": self.along, "stages": _STAGES, "shared": self.shared}
        return shape | {"slot": self.slot, "segmented": self.segments is not None}


def segments_of(k: int) -> Segments | None:
    """Two, by k alone, so that a CTA of few rows has eight warps."""
    return Segments(2, -(-k // (2 * _STAGE)) * _STAGE) if k >= _LEAST else None


def _shape(problem: MatmulDescriptor, target: Target) -> Copied:
    assert problem.weight_format is not None
    segments, few = segments_of(problem.k), problem.total_num_rows <= _FEW
    along = 2 if few and segments is not None else 1
    return Copied(_FEW if few else _MANY, along, segments, matmul_coded.slot_of(problem.weight_format))


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, ARCHS)
    if problem.weight_format is None:
        yield from support.choice_reason("OPF-S003", "weight_format", None, ("int4", "uint4", "e2m1"))
        return
    yield from matmul_codes.lacks(problem, problem.weight_format)
    yield from matmul_coded.lacks_of_codes(problem.weight_format, problem.dtype)
    if problem.weight_format.scale_dtype == "f8_e4m3":  # no instruction converts it
        yield from support.choice_reason("OPF-S001", "target.arch with scales of f8_e4m3", target.arch, ("sm_89",))


@cached_by_specialization
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or tuple(matmul_coded.unfit_sizes(problem))


CANDIDATE = candidate(_FORM, _declines, _shape)
