"""Grouped products with many rows per group whose weights have codes: a first launch decodes the weights of non-empty groups to
the workspace. Sums have the order and segments of the mma.sync kernel, so that both kernels give a row the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.matmul import (
    coded as matmul_coded,
)
from opfacade.backends.cuda.matmul import (
    coded_mma as matmul_coded_mma,
)
from opfacade.backends.cuda.matmul import (
    decoded as matmul_decoded,
)
from opfacade.backends.cuda.matmul import (
    grouped as matmul_grouped,
)
from opfacade.backends.cuda.matmul.copied import segments_of
from opfacade.backends.cuda.matmul.decoded import Decoded
from opfacade.backends.cuda.matmul.kernel import ARCH, Form, candidate
from opfacade.backends.cuda.matmul.tiles import Sizes, nanoseconds, whole_tile_of
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.descriptor import memoize_last
from opfacade.core.target import Target
from opfacade.plans.matmul import GroupedMatmulDescriptor

_CODES = ("int4", "uint4", "e2m1", "f8_e4m3")
_MOST_GROUPS = 1024  # the limit of the kernel for few rows
_WIDTH = 8  # k must be a multiple: lines of the decoded weight consist of 16-byte chunks
# Times in ns of kernels that decode per tile, fitted to an H200: per call, per tile, per panel of 64 elements of k (4 bits:
# 464 for int4 and uint4, 540 for e2m1).


class _Tiles(NamedTuple):
    """rows, columns: size of a tile. resident: concurrent tiles per SM. call, tile, panel: times in ns."""

    rows: int
    columns: int
    resident: int
    call: float
    tile: float
    panel: float


_IN_REGISTERS = {4: _Tiles(128, 128, 1, 5500.0, 3100.0, 500.0), 8: _Tiles(32, 64, 2, 4000.0, 0.0, 680.0)}
_FEW = {4: 128, 8: 16}  # bits per code -> maximum rows per group for which each tile decodes

_TEST = "tests/families/matmul/test_decoded_groups.py::test_a_row_has_the_bits_of_the_kernel_of_few"
_FORM = Form(
    descriptor=GroupedMatmulDescriptor,
    template="matmul/decoded_groups",
    impl="wgmma_decoded_groups",
    in_any_batch={"codes": _TEST},
    on_a_gpu="tests/families/matmul/test_decoded_groups_gpu.py::test_a_row_has_the_bits_of_the_kernel_of_few_on_a_gpu",
)


def _sizes(problem: GroupedMatmulDescriptor) -> Sizes:
    rows, drawn = matmul_grouped.rows_of(problem)
    segments = segments_of(problem.k, problem.order)
    many = 1 if segments is None else segments.many
    return Sizes(rows, problem.n * problem.columns, problem.k, drawn, segments=many)


def _sms(problem: GroupedMatmulDescriptor, target: Target) -> int:
    return min(target.sm_count, problem.sm_limit or target.sm_count)


def _bits(problem: GroupedMatmulDescriptor) -> int:
    return 4 if problem.weight_format is None or problem.weight_format.packed else 8


@memoize_last
def _shape(problem: GroupedMatmulDescriptor, target: Target) -> Decoded:
    """The tile for the maximum number of non-empty groups, all of equal size, because the real sizes are on the device."""
    weight = problem.weight_format
    assert weight is not None
    sizes, gather = _sizes(problem), problem.gather
    tile = matmul_decoded.tile_of(sizes, _sms(problem, target), 0 if gather else sizes.rows)
    slot = matmul_coded.slot_of(weight) if weight.packed else matmul_coded_mma.slot_of_bytes(weight, problem.dtype)
    return Decoded(tile, segments_of(problem.k, problem.order), slot, _bits(problem))


@lru_cache(maxsize=4096)
def pays(sizes: Sizes, sms: int, bits: int) -> bool:
    """Whether decoding the weights of all non-empty groups first is faster than decoding per tile. bits: bits per code."""
    if sizes.rows <= _FEW[bits]:
        return False
    wide = nanoseconds(whole_tile_of(sizes, sms, True), sizes, sms)
    first = matmul_decoded.first_of(sizes.batch * sizes.columns * sizes.k)
    own = _IN_REGISTERS[bits]
    tiles = -(-sizes.rows // own.rows) * -(-sizes.columns // own.columns) * sizes.batch
    return first + wide < own.call + -(-tiles // (sms * own.resident)) * (own.tile + sizes.k / 64 * own.panel)


def _scratch(problem: GroupedMatmulDescriptor) -> int:
    """Bytes of the decoded weights of all groups."""
    return matmul_decoded.bytes_of(problem.groups * problem.n * problem.columns * problem.k)


@at_any_size
def _unfit(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(matmul_coded_mma.lacks_of_groups(problem, target, (ARCH,), _CODES))


def _few(problem: GroupedMatmulDescriptor, target: Target) -> Iterator[Reason]:
    """Reasons that depend on sizes, which `_unfit` must not cache."""
    yield from support.limit_reason("OPF-S004", "groups", problem.groups, _MOST_GROUPS)
    yield from support.choice_reason("OPF-S003", f"k % {_WIDTH}", problem.k % _WIDTH, (0,))
    paid = problem.k > 0 and pays(_sizes(problem), _sms(problem, target), _bits(problem))
    yield from support.choice_reason("OPF-S003", "rows enough to decode the weights first", paid, (True,))


def _declines(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or tuple(_few(problem, target)) or ptxas.reasons()


CANDIDATE = candidate(_FORM, _declines, _shape, _scratch)
