"""Products whose weight has codes of four bits, decoded to registers. Rows of x lie on the columns of wgmma, and columns of the
product on its rows. By n and k alone k is cut into segments, which warpgroups sum side by side or one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from opfacade.backends.cuda import matmul_codes, ptxas, support
from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul_kernel import ARCH, Form, candidate
from opfacade.backends.cuda.matmul_segments import Segments
from opfacade.core.candidate import Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.target import Target
from opfacade.plans._weight import Weight
from opfacade.plans.matmul import MatmulDescriptor

_COLUMNS = 64  # of the product for a warpgroup
_STAGE = 256  # elements of k
_PANEL = 64  # elements of k of a panel of x
_ALONG = 4  # warpgroups of a CTA that have a segment each
# CTAs that a cluster of so many may make, so that they run at once. Other numbers would change bits.
_SPLITS = ((8, 96), (4, 112), (2, 132))
_LEAST = 256  # elements of a segment
_RING = {8: (4, 4, 4), 16: (3, 3, 4), 32: (2, 2, 4), 64: (3, 16, 1), 128: (3, 8, 1)}  # stages of codes and of x, and its panels
_SUMS = 68 * 4  # bytes of a row of partial sums
_ALLOWED: dict[str, tuple[str | int | None, ...]] = {
    "dtype": ("int4", "uint4"),
    "dequantise": ("rounded",),
    "group": (32, 64, 128, None),
    "scale_dtype": ("f32", "bf16", "f16"),
    "global_scale": (False,),
}
_ROUND = 32  # rows of x whose sums are finished together

_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/coded_matmul",
    impl="wgmma_codes",
    in_any_batch={"codes": "tests/families/matmul/test_coded_kernel.py::test_a_row_has_its_bits_in_any_batch"},
    on_a_gpu="tests/families/matmul/test_matmul_gpu.py::test_a_row_has_its_bits_among_any_rows_on_a_gpu",
)


class Coded(NamedTuple):
    """rows: of x in a tile; along: warpgroups with the same columns and a segment of k each; beside: those with columns side by
    side; split: CTAs of a cluster with one tile; slot: elements of k that surely lie in one group, 0: all."""

    rows: int
    along: int
    beside: int
    split: int
    segments: Segments | None
    slot: int
    repack: bool = False

    @property
    def shared(self) -> int:
        """Bytes, as CodedShared has them."""
        codes, x, panels = _RING[self.rows]
        team = codes * self.beside * _COLUMNS * 128 + x * panels * self.rows * 128 + 16 * (codes + x)
        return self.along * team + self.along * self.beside * min(self.rows, _ROUND) * _SUMS

    def facts(self) -> dict[str, Fact]:
        found: dict[str, Fact] = {"tile_rows": self.rows, "tile_columns": _COLUMNS * self.beside}
        found |= {"along": self.along} if self.along > 1 else {}
        found |= {"segment": self.segments.length} if self.segments is not None else {}
        found |= {"slot": self.slot} if self.slot else {}
        return found | ({"split": self.split} if self.split > 1 else {})

    def printed(self) -> dict[str, Fact]:
        codes, x, panels = _RING[self.rows]
        shape: dict[str, Fact] = {"tokens": self.rows, "along": self.along, "beside": self.beside, "split": self.split}
        shape |= {"code_stages": codes, "x_stages": x, "x_panels": panels, "shared": self.shared, "slot": self.slot}
        return shape | {"segmented": self.segments is not None}


def segments_of(n: int, k: int) -> Segments | None:
    """Four, or as many as make CTAs for most SMs of an H100; None: k is one chain."""
    tiles = -(-n // _COLUMNS)
    split = next((many for many, most in _SPLITS if tiles * many <= most and k >= many * _ALONG * _LEAST), 1)
    stages = -(-k // _STAGE)
    each = -(-stages // (split * _ALONG))
    many = -(-stages // each)
    return None if many == 1 else Segments(many, each * _STAGE)


def _slot(weight: Weight) -> int:
    if weight.group is None:
        return 0
    return weight.group if weight.group_offset % weight.group == 0 else 32


def _shape(problem: MatmulDescriptor, target: Target) -> Coded:
    assert problem.weight_format is not None
    return shape_of(problem.total_num_rows, segments_of(problem.n * problem.columns, problem.k), _slot(problem.weight_format))


def shape_of(rows: int, segments: Segments | None, slot: int) -> Coded:
    if rows > 64:
        return Coded(128 if rows > 128 else 64, 1, 2, 1, segments, slot)
    many = 1 if segments is None else segments.many
    split = next(split for split in (1, 2, 4, 8) if split * _ALONG >= many)
    return Coded(next(tile for tile in (8, 16, 32) if tile >= min(rows, 32)), _ALONG, 1, split, segments, slot)


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    if problem.weight_format is None:
        yield from support.choice_reason("OPF-S003", "weight_format", None, ("int4", "uint4"))
        return
    yield from matmul_codes.lacks(problem, problem.weight_format)
    for field, choices in _ALLOWED.items():
        yield from support.choice_reason("OPF-S003", f"weight_format.{field}", getattr(problem.weight_format, field), choices)


@cached_by_specialization
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _unfit_sizes(problem: MatmulDescriptor) -> Iterator[Reason]:
    """Not remembered with what a kind of problems lacks: k is a size."""
    yield from support.choice_reason("OPF-S003", f"k % {_PANEL}", problem.k % _PANEL, (0,))
    yield from support.choice_reason("OPF-S003", "k == 0", problem.k == 0, (False,))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or tuple(_unfit_sizes(problem)) or ptxas.reasons()


CANDIDATE = candidate(_FORM, _declines, _shape)
