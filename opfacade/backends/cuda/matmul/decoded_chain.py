"""Products whose weight has codes that only the tile kernel decodes: a first launch decodes the weight once, to the workspace,
and the second is the product of 16-bit operands. k is one chain, as in the tile kernel, so that both kernels give a row the
same bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul import codes as matmul_codes
from opfacade.backends.cuda.matmul import decoded as matmul_decoded
from opfacade.backends.cuda.matmul import repack as matmul_repack
from opfacade.backends.cuda.matmul import source as matmul_source
from opfacade.backends.cuda.matmul.decoding import terms
from opfacade.backends.cuda.matmul.kernel import ARCH, HALVES, Form, candidate
from opfacade.backends.cuda.matmul.segments import Segments
from opfacade.backends.cuda.matmul.tiles import TILES, Sizes, Tile, nanoseconds, stages_of, tile_of
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans._weights.weight import Weight
from opfacade.plans.matmul import MatmulDescriptor

_MOST_GROUPS = 896  # in any order: each warp has a table entry of eight bytes for each group and each of four columns
_STAGES = 3  # minimum stages of a tile with two terms
_EACH = 8  # lines of the decoded weight are multiples of this number of elements, 16 bytes
_FORMATS = ("int4", "uint4", "e2m1", "f8_e4m3")
# Elements per ns that a CTA of the tile kernel decodes, measured on an H200: with groups in sequence, and with a group for each
# element.
_IN_SEQUENCE, _IN_ORDER = 5.0, 0.78

_TEST = "tests/families/matmul/test_decoded_chain.py::test_a_row_has_the_bits_of_the_tile_kernel_in_any_batch"
_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/decoded_matmul",
    impl="wgmma_decoded_chain",
    in_any_batch={"codes": _TEST},
    on_a_gpu="tests/families/matmul/test_decoded_chain_gpu.py::test_a_row_has_the_bits_of_the_tile_kernel_on_a_gpu",
)


class Chain(NamedTuple):
    """The tile of the product. bits: bits per code. words: 32-bit words of a scale and its zero point. terms: operands whose
    sum is the weight. repack: whether a launch fills a workspace."""

    tile: Tile
    bits: int
    words: int
    terms: int = 1
    segments: Segments | None = None
    repack: bool = True
    revision: int = 1

    def facts(self) -> dict[str, Fact]:
        return matmul_source.shape_of(self.tile, None)

    def printed(self) -> dict[str, Fact]:
        printed = matmul_source.printed_shape(self.tile, None, terms=self.terms)
        return printed | {"weight_bits": self.bits, "entry_words": self.words}


class Work(NamedTuple):
    """All that the times of both kernels depend on. rate: elements per ns that a CTA of the tile kernel decodes. terms:
    operands whose sum is the weight."""

    sizes: Sizes
    sms: int
    rate: float
    terms: int = 1

    @property
    def product(self) -> Sizes:
        """The sizes of the second launch, which multiplies x by each term."""
        return self.sizes._replace(k=self.sizes.k * self.terms)

    @property
    def tile(self) -> Tile:
        if self.terms == 1:
            return tile_of(self.sizes, self.sms)
        fits = (tile for tile in TILES if stages_of(tile, self.terms) >= _STAGES)
        return min(fits, key=lambda tile: nanoseconds(tile, self.product, self.sms))


def _work(problem: MatmulDescriptor, target: Target) -> Work:
    sms = min(target.sm_count, problem.sm_limit or target.sm_count)
    weight = problem.weight_format
    rate = _IN_ORDER if weight is not None and weight.num_groups is not None else _IN_SEQUENCE
    copied = matmul_repack.rate_of(problem) if problem.k % _EACH else 0.0
    sizes = Sizes(problem.total_num_rows, problem.n * problem.columns, problem.k, problem.batch, copied=copied)
    return Work(sizes, sms, rate, terms(weight, problem.dtype))


def _shape(problem: MatmulDescriptor, target: Target) -> Chain:
    weight = problem.weight_format
    assert weight is not None
    work = _work(problem, target)
    return Chain(work.tile, 4 if weight.packed else 8, _words(weight), work.terms)


def _words(weight: Weight) -> int:
    size = ITEMSIZE[weight.scale_dtype]
    zero = {"none": 0, "int": 1}.get(weight.zero, size)
    return -(-(size + zero) // 4)


@lru_cache(maxsize=4096)
def pays(work: Work) -> bool:
    """Whether decoding the weight first is faster than decoding it for each tile of the product."""
    sizes, sms = work.sizes, work.sms
    first = matmul_decoded.first_of(sizes.batch * sizes.columns * sizes.k * work.terms)
    own = matmul_codes.shape_of(sizes._replace(copied=0.0), sms, work.terms).tile
    tiles = -(-sizes.rows // own.rows) * -(-sizes.columns // own.columns) * sizes.batch
    per_tile = -(-tiles // sms) * own.columns * sizes.k / work.rate
    return first + nanoseconds(work.tile, work.product, sms) < max(per_tile, nanoseconds(own, sizes, sms))


def _scratch(problem: MatmulDescriptor) -> int:
    """Bytes of the decoded weight, or of its two terms."""
    line = -(-problem.k // _EACH) * _EACH * terms(problem.weight_format, problem.dtype)
    return matmul_decoded.bytes_of(problem.batch * problem.n * problem.columns * line)


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, HALVES)
    if problem.weight_format is None:
        yield from support.choice_reason("OPF-S003", "weight_format", None, _FORMATS)
        return
    yield from matmul_codes.lacks(problem, problem.weight_format, ordered=True)
    yield from support.limit_reason("OPF-S004", "weight_format.num_groups", problem.weight_format.num_groups or 0, _MOST_GROUPS)


@at_any_size
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _few(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    """Reasons that depend on sizes, which `_unfit` must not cache."""
    paid = problem.k > 0 and pays(_work(problem, target))
    yield from support.choice_reason("OPF-S003", "rows enough to decode the weight first", paid, (True,))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or tuple(_few(problem, target)) or ptxas.reasons()


CANDIDATE = candidate(_FORM, _declines, _shape, _scratch)
