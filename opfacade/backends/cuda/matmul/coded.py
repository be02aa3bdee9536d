"""Products whose weight has 4-bit codes, decoded to registers. Rows of x are the columns (N) of wgmma, and columns of the
product are its rows (M). k is divided into segments that depend only on n and k; warpgroups sum them in parallel or in
sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul import codes as matmul_codes
from opfacade.backends.cuda.matmul.decoding import way_of
from opfacade.backends.cuda.matmul.kernel import ARCH, Form, candidate
from opfacade.backends.cuda.matmul.segments import Segments
from opfacade.backends.cuda.matmul.source import Product
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans._weights.weight import Weight
from opfacade.plans.matmul import MatmulDescriptor

_COLUMNS = 64  # columns of the product per warpgroup
_STAGE = 256  # elements of k per stage
_PANEL = 128  # bytes per row of a panel of x
_ALONG = 4  # warpgroups of a CTA with separate segments
# (CTAs per cluster, maximum total of CTAs that run concurrently). Other numbers would change bits.
_SPLITS = ((8, 96), (4, 112), (2, 132))
_LEAST = 256  # minimum elements per segment
_SUMMED = (32, 64, 128)  # groups whose sums are scaled
_SUMMED_ROWS = 32  # maximum rows of a tile of warpgroups along k, whose registers hold sums of groups too
# (rows of a tile, warpgroups along k): stages of codes, stages of x, panels of x.
_RING = {
    (8, 4): (4, 4, 4),
    (16, 4): (3, 3, 4),
    (32, 4): (2, 2, 4),
    (64, 4): (2, 4, 1),
    (64, 1): (3, 16, 1),
    (128, 1): (3, 8, 1),
}
_PARKED = (3, 6, 1)  # the same for tiles whose totals are in shared memory
_SUMS = 68 * 4  # bytes per row of partial sums
# Allowed formats with int4 and uint4, and with e2m1 unless _SCALES has the type of x.
_ALLOWED: dict[str, tuple[str | int | None, ...]] = {
    "dequantise": ("rounded",),
    "group": (32, 64, 128, None),
    "scale_dtype": ("f32", "bf16", "f16"),
    "global_scale": (False,),
}
_SCALES = {"bf16": ("bf16", "f8_e4m3", "f8_e8m0"), "f16": ("f16", "f8_e4m3")}
_BYTES = "f8_e4m3"
_BY_WARPS = 16  # maximum rows of x for mma.sync
_SHARED = 32  # minimum rows of a tile of x that neighbouring CTAs share
_ALL = 114  # SMs of the smallest card
_ROUND = 32  # rows of x whose sums are stored together
_FIT = 64  # maximum rows of a tile whose totals fit in registers with sums of groups and of a segment

_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/coded_matmul",
    impl="wgmma_codes",
    in_any_batch={"codes": "tests/families/matmul/test_coded_kernel.py::test_a_row_has_its_bits_in_any_batch"},
    on_a_gpu="tests/families/matmul/test_matmul_gpu.py::test_a_row_has_its_bits_among_any_rows_on_a_gpu",
    sums=True,
)


class _Time(NamedTuple):
    """ns per tile, and per panel of 64 elements of k."""

    tile: float
    panel: float


# Fitted to an H200: ns per call, and the times of a tile, by its rows and warpgroups.
_CALL = 5500.0
_TIMES = {
    (128, 2): _Time(3100.0, 464.0),
    (128, 1): _Time(3500.0, 320.0),
    (64, 4): _Time(6000.0, 700.0),
    (32, 4): _Time(4200.0, 500.0),
}


class Coding(NamedTuple):
    """Sizes of a product. n: columns of the weight."""

    rows: int
    n: int
    k: int
    batch: int = 1


class Coded(NamedTuple):
    """rows: rows of x per tile. along: warpgroups with the same columns and different segments of k. beside: warpgroups with
    adjacent columns. split: CTAs of a cluster that share a tile. slot: elements of k that are always in one group; 0: all.
    aside: CTAs of a cluster that share rows of x. sums: whether scales multiply sums of groups."""

    rows: int
    along: int
    beside: int
    split: int
    segments: Segments | None
    slot: int
    repack: bool = False
    aside: int = 1
    size: int = 2
    sums: bool = False

    @property
    def revision(self) -> int:
        """2 for 8-bit rows with one scale per column, which multiplies the whole sum."""
        return 2 if self.size == 1 and self.slot == 0 else 1

    @property
    def parks(self) -> bool:
        """Whether totals are in shared memory while a segment is summed."""
        return self.sums and self.segments is not None and self.along == 1 and self.rows > _FIT

    @property
    def ring(self) -> tuple[int, int, int]:
        """Stages of codes, stages of x, panels of x."""
        return _PARKED if self.parks else _RING[self.rows, self.along]

    @property
    def panels(self) -> int:
        """Panels per stage of x: a panel has 64 elements of 16 bits or 128 of 8 bits."""
        return max(1, self.ring[2] * self.size // 2)

    @property
    def shared(self) -> int:
        """Bytes of shared memory, as in CodedShared."""
        (codes, x, _), panels = self.ring, self.panels
        team = codes * self.beside * _COLUMNS * 128 + x * panels * self.rows * 128 + 16 * (codes + x)
        partial = max(min(self.rows, _ROUND) * _SUMS, self.parks * self.rows * _COLUMNS * 4)
        return self.along * team + self.along * self.beside * partial

    def facts(self) -> dict[str, Fact]:
        found: dict[str, Fact] = {"tile_rows": self.rows, "tile_columns": _COLUMNS * self.beside}
        found |= {"along": self.along} if self.along > 1 else {}
        found |= {"segment": self.segments.length} if self.segments is not None else {}
        found |= {"slot": self.slot} if self.slot else {}
        found |= {"aside": self.aside} if self.aside > 1 else {}
        return found | ({"split": self.split} if self.split > 1 else {})

    def printed(self) -> dict[str, Fact]:
        codes, x, _ = self.ring
        shape: dict[str, Fact] = {"tokens": self.rows, "along": self.along, "beside": self.beside, "split": self.split}
        shape |= {"aside": self.aside}
        shape |= {"code_stages": codes, "x_stages": x, "x_panels": self.panels, "shared": self.shared, "slot": self.slot}
        return shape | {"segmented": self.segments is not None, "by_warps": self.rows <= _BY_WARPS and self.size == 2}


def segments_of(n: int, k: int) -> Segments | None:
    """Four segments, or more if this gives CTAs for most SMs of an H100; None: k is one chain."""
    tiles = -(-n // _COLUMNS)
    split = next((many for many, most in _SPLITS if tiles * many <= most and k >= many * _ALONG * _LEAST), 1)
    stages = -(-k // _STAGE)
    each = -(-stages // (split * _ALONG))
    many = -(-stages // each)
    return None if many == 1 else Segments(many, each * _STAGE)


def slot_of(weight: Weight) -> int:
    if weight.group is None:
        return 0
    return weight.group if weight.group_offset % weight.group == 0 else 32  # matmul_codes allows no other


def _shape(problem: MatmulDescriptor, target: Target) -> Coded:
    assert problem.weight_format is not None
    sms = min(target.sm_count, problem.sm_limit or target.sm_count)
    sizes = Coding(problem.total_num_rows, problem.n * problem.columns, problem.k, problem.batch)
    sums = way_of(problem.weight_format, problem.dtype, True) == "sums"
    return shape_of(sizes, slot_of(problem.weight_format), sms, sums)._replace(size=ITEMSIZE[problem.dtype])


def shape_of(sizes: Coding, slot: int, sms: int, sums: bool = False) -> Coded:
    """Up to 64 rows use warpgroups along k. More rows use the tile that is fastest in a model. All CTAs of a split run
    concurrently, so a split needs as many SMs as it has CTAs, or all SMs."""
    segments = segments_of(sizes.n, sizes.k)
    along = _along(sizes, Coded(_SUMMED_ROWS if sums else 64, _ALONG, 1, 1, segments, slot, sums=sums), sms)
    fits = along.split == 1 or sms >= _ALL or _ctas(along, sizes) <= sms
    if sizes.rows <= 64:
        return along if fits else Coded(64, 1, 2, 1, segments, slot, sums=sums)
    shapes = [Coded(128, 1, beside, 1, segments, slot, sums=sums) for beside in (2, 1)] + ([along] if fits else [])
    return min(shapes, key=lambda shape: nanoseconds(shape, sizes, sms))


def nanoseconds(shape: Coded, sizes: Coding, sms: int) -> float:
    """The time of a product in ns."""
    time, length = _TIMES[shape.rows, shape.along * shape.beside], sizes.k
    if shape.along > 1 and shape.segments is not None:
        length = shape.segments.length
    return _CALL + -(-_ctas(shape, sizes) // sms) * (time.tile + length / 64 * time.panel)


def _ctas(shape: Coded, sizes: Coding) -> int:
    """The number of CTAs with one tile each."""
    return -(-sizes.rows // shape.rows) * -(-sizes.n // (_COLUMNS * shape.beside)) * sizes.batch * shape.split


def _along(sizes: Coding, most: Coded, sms: int) -> Coded:
    """The shape for few rows. most: the one with the most rows per tile."""
    many = 1 if most.segments is None else most.segments.many
    split = next(split for split in (1, 2, 4, 8) if split * _ALONG >= many)
    rows = next((tile for tile in (8, 16, 32) if tile >= sizes.rows), most.rows)
    aside = 2 if rows >= _SHARED and split == 1 and min(sizes.n // _COLUMNS, sms) >= 2 else 1
    return most._replace(rows=rows, split=split, aside=aside)


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    if problem.weight_format is None:
        yield from support.choice_reason("OPF-S003", "weight_format", None, ("int4", "uint4", "e2m1"))
        return
    if problem.dtype == _BYTES:
        yield from _lacks_of_bytes(problem, problem.weight_format)
        return
    yield from matmul_codes.lacks(problem, problem.weight_format, sums=True)
    yield from lacks_of_codes(problem.weight_format, problem.dtype, sums=True)


def _lacks_of_bytes(problem: MatmulDescriptor, weight: Weight) -> Iterator[Reason]:
    """Reasons for e4m3 rows: e4m3 must represent the codes, and scales multiply the sums of groups."""
    yield from support.choice_reason("OPF-S003", "x_layout", problem.x_layout, ("mk",))
    facts: dict[str, tuple[str | int | None, ...]] = {
        "dtype": ("int4", "e2m1"), "dequantise": ("group_sum",), "zero": ("none",), "group": (32, 64, 128, None),
        "num_groups": (None,),
    }  # fmt: skip
    for field, choices in facts.items():
        yield from support.choice_reason("OPF-S003", f"weight_format.{field}", getattr(weight, field), choices)
    yield from support.choice_reason("OPF-S003", "weight_format.group_offset % 32", weight.group_offset % 32, (0,))


def lacks_of_codes(weight: Weight, dtype: str, sums: bool = False) -> Iterator[Reason]:
    """Reasons against a format whose numbers are neither rounded to the type of x nor representable in it. sums: as in
    way_of."""
    yield from support.choice_reason("OPF-S003", "weight_format.dtype", weight.dtype, ("int4", "uint4", "e2m1"))
    allowed = _ALLOWED
    if way_of(weight, dtype, sums) == "sums":
        allowed = {"group": _SUMMED}
    elif weight.dtype == "e2m1" and dtype in _SCALES:
        allowed = {"scale_dtype": _SCALES[dtype]}
        if way_of(weight, dtype) != "whole":
            allowed |= {"dequantise": ("rounded",), "global_scale": (False,)}
    for field, choices in allowed.items():
        yield from support.choice_reason("OPF-S003", f"weight_format.{field}", getattr(weight, field), choices)


@at_any_size
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def unfit_sizes(problem: Product) -> Iterator[Reason]:
    """Reasons that depend on sizes, which `_unfit` must not cache."""
    panel = _PANEL // ITEMSIZE[problem.dtype]
    yield from support.choice_reason("OPF-S003", f"k % {panel}", problem.k % panel, (0,))
    yield from support.choice_reason("OPF-S003", "k == 0", problem.k == 0, (False,))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or tuple(unfit_sizes(problem)) or ptxas.reasons()


CANDIDATE = candidate(_FORM, _declines, _shape)
