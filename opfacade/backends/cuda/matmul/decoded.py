"""Products of many rows whose weight has 4-bit codes: a first launch decodes the weight once, to the workspace. Sums have the
order and segments of the kernel that decodes to registers, so that both kernels give a row the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul import coded as matmul_coded
from opfacade.backends.cuda.matmul import codes as matmul_codes
from opfacade.backends.cuda.matmul import source as matmul_source
from opfacade.backends.cuda.matmul.kernel import ARCH, HALVES, Form, candidate
from opfacade.backends.cuda.matmul.segments import Segments
from opfacade.backends.cuda.matmul.tiles import Sizes, Tile, nanoseconds, whole_tile_of
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import WORKSPACE_ALIGNMENT, Reason
from opfacade.core.target import Target
from opfacade.plans.matmul import MatmulDescriptor

_TILE_ROWS, _TILE_COLUMNS = 128, 128
_PLAIN, _PAIR, _WIDE = Tile(128, 128, 1), Tile(128, 128, 1, 2), Tile(128, 192, 1)
_WAIT = 1.05  # factor for the time of the wide tile, whose warpgroups wait at the end of a segment
_ROUNDS = 4  # minimum tiles per SM for which pairs of CTAs that share a weight are faster
_FEW = 256  # maximum rows for which each tile decodes
_LAUNCH = 2500.0  # ns of an empty decoding launch
_MEMORY = 3000.0  # bytes per ns
_CODES = 1.25  # bytes of an element's code and number, relative to those of the number

_TEST = "tests/families/matmul/test_decoded_kernel.py::test_many_rows_have_the_bits_of_few"
_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/decoded_matmul",
    impl="wgmma_decoded",
    in_any_batch={"codes": _TEST},
    on_a_gpu="tests/families/matmul/test_coded_gpu.py::test_many_rows_have_the_bits_of_few_on_a_gpu",
)


class Decoded(NamedTuple):
    """The tile of the product. slot: as in matmul_coded. bits: bits per code. repack: whether a launch fills a workspace."""

    tile: Tile
    segments: Segments | None
    slot: int
    bits: int = 4
    repack: bool = True
    revision: int = 1

    def facts(self) -> dict[str, Fact]:
        return matmul_source.shape_of(self.tile, self.segments) | ({"slot": self.slot} if self.slot else {})

    def printed(self) -> dict[str, Fact]:
        return matmul_source.printed_shape(self.tile, self.segments) | {"slot": self.slot, "weight_bits": self.bits}


def _sizes(problem: MatmulDescriptor) -> tuple[Sizes, Segments | None]:
    n = problem.n * problem.columns
    segments = matmul_coded.segments_of(n, problem.k)
    many = 1 if segments is None else segments.many
    return Sizes(problem.total_num_rows, n, problem.k, problem.batch, segments=many), segments


def _sms(problem: MatmulDescriptor, target: Target) -> int:
    return min(target.sm_count, problem.sm_limit or target.sm_count)


def _shape(problem: MatmulDescriptor, target: Target) -> Decoded:
    assert problem.weight_format is not None
    sizes, segments = _sizes(problem)
    return Decoded(tile_of(sizes, _sms(problem, target), sizes.rows), segments, matmul_coded.slot_of(problem.weight_format))


@lru_cache(maxsize=4096)
def tile_of(sizes: Sizes, sms: int, together: int) -> Tile:
    """The fastest tile of a product whose segments are summed in sequence. together: rows whose CTAs may form a cluster."""
    best = whole_tile_of(sizes, sms, together == 0)
    if sizes.segments > 1 and _WAIT * nanoseconds(_WIDE, sizes, sms) < nanoseconds(best, sizes, sms):
        return _WIDE
    tiles = -(-sizes.rows // _TILE_ROWS) * -(-sizes.columns // _TILE_COLUMNS) * sizes.batch
    return _PAIR if best == _PLAIN and together >= _ROUNDS * _TILE_ROWS and tiles >= _ROUNDS * sms else best


def first_of(elements: int) -> float:
    """Time in ns of the launch that decodes this number of 16-bit elements."""
    return _LAUNCH + _CODES * elements * 2 / _MEMORY


@lru_cache(maxsize=4096)
def pays(sizes: Sizes, sms: int) -> bool:
    """Whether decoding the weight first is faster than decoding it per tile."""
    if sizes.rows <= _FEW:
        return False
    wide = nanoseconds(tile_of(sizes, sms, sizes.rows), sizes, sms)
    first = first_of(sizes.batch * sizes.columns * sizes.k)
    coding = matmul_coded.Coding(sizes.rows, sizes.columns, sizes.k, sizes.batch)
    return first + wide < matmul_coded.nanoseconds(matmul_coded.shape_of(coding, 0, sms), coding, sms)


def _scratch(problem: MatmulDescriptor) -> int:
    """Bytes of the decoded weight."""
    return bytes_of(problem.batch * problem.n * problem.columns * problem.k)


def bytes_of(elements: int) -> int:
    """Bytes of a workspace for this number of 16-bit elements."""
    return -(-2 * elements // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, HALVES)
    if problem.weight_format is None:
        yield from support.choice_reason("OPF-S003", "weight_format", None, ("int4", "uint4", "e2m1"))
        return
    yield from matmul_codes.lacks(problem, problem.weight_format)
    yield from matmul_coded.lacks_of_codes(problem.weight_format, problem.dtype)


@at_any_size
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _few(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    """Reasons that depend on sizes, which `_unfit` must not cache."""
    yield from matmul_coded.unfit_sizes(problem)
    paid = problem.k > 0 and pays(_sizes(problem)[0], _sms(problem, target))
    yield from support.choice_reason("OPF-S003", "rows enough to decode the weight first", paid, (True,))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or tuple(_few(problem, target)) or ptxas.reasons()


CANDIDATE = candidate(_FORM, _declines, _shape, _scratch)
