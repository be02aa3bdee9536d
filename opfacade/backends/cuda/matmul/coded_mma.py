"""Products whose weight has 4-bit or 8-bit codes, for GPUs before sm_90: mma.sync instead of wgmma, and copies by threads
instead of TMA. They are compiled and emulated, but not yet measured on such a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.backends.cuda import support
from opfacade.backends.cuda.matmul import coded as matmul_coded
from opfacade.backends.cuda.matmul import codes as matmul_codes
from opfacade.backends.cuda.matmul.copied import Copied, segments_of, shape_of
from opfacade.backends.cuda.matmul.decoding import way_of
from opfacade.backends.cuda.matmul.kernel import Form, candidate
from opfacade.backends.cuda.matmul.source import Product
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.target import Target
from opfacade.plans._weights.weight import Weight
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor

ARCHS = ("sm_80", "sm_86", "sm_89")
_FOURS, _BYTES = ("int4", "uint4", "e2m1"), "f8_e4m3"
_FEW, _MANY = 16, 64  # rows of a tile with 4-bit codes

_TESTS = "tests/families/matmul/test_copied_codes.py"
_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/copied_codes",
    impl="mma_codes",
    in_any_batch={"codes": f"{_TESTS}::test_a_row_has_its_bits_in_any_batch"},
    on_a_gpu=f"{_TESTS}::test_it_keeps_its_bound",
    sums=True,
)
_BYTE_TESTS = "tests/families/matmul/test_copied_bytes.py"
_BYTE_FORM = Form(
    descriptor=MatmulDescriptor,
    template="matmul/copied_codes",
    impl="mma_byte_codes",
    in_any_batch={"codes": f"{_BYTE_TESTS}::test_a_row_has_its_bits_in_any_batch"},
    on_a_gpu=f"{_BYTE_TESTS}::test_it_keeps_its_bound",
)


def _shape(problem: MatmulDescriptor, target: Target) -> Copied:
    assert problem.weight_format is not None
    rows = _FEW if problem.total_num_rows <= _FEW else _MANY
    return shape_of(rows, segments_of(problem.k, problem.order), matmul_coded.slot_of(problem.weight_format), 4)


def _shape_of_bytes(problem: MatmulDescriptor, target: Target) -> Copied:
    assert problem.weight_format is not None
    segments = segments_of(problem.k, problem.order)
    return shape_of(problem.total_num_rows, segments, slot_of_bytes(problem.weight_format, problem.dtype), 8)


def slot_of_bytes(weight: Weight, dtype: str) -> int:
    """The slot of 8-bit codes; 0 if the scale of a column multiplies its sum."""
    return 0 if way_of(weight, dtype) == "column" else matmul_coded.slot_of(weight)


def _lacks(problem: MatmulDescriptor, target: Target, bytes_of: bool) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, ARCHS)
    if problem.weight_format is None:
        yield from support.choice_reason("OPF-S003", "weight_format", None, (_BYTES,) if bytes_of else _FOURS)
        return
    yield from lacks_of_format(problem, problem.weight_format, target, (_BYTES,) if bytes_of else _FOURS, not bytes_of)


def lacks_of_groups(
    problem: GroupedMatmulDescriptor, target: Target, archs: tuple[str, ...], codes: tuple[str, ...], sums: bool = False
) -> Iterator[Reason]:
    """Reasons against grouped products whose weights have codes. sums: as in way_of."""
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, archs)
    if problem.weight_format is None:
        yield from support.choice_reason("OPF-S003", "weight_format", None, codes)
    else:
        yield from lacks_of_format(problem, problem.weight_format, target, codes, sums)


def lacks_of_format(
    problem: Product, weight: Weight, target: Target, kinds: tuple[str, ...], sums: bool = False
) -> Iterator[Reason]:
    """Reasons against a weight format. kinds: code types that the kernel accepts. sums: as in way_of."""
    yield from matmul_codes.lacks(problem, weight, sums=sums)
    yield from support.choice_reason("OPF-S003", "weight_format.dtype", weight.dtype, kinds)
    if weight.dtype in _FOURS:
        yield from matmul_coded.lacks_of_codes(weight, problem.dtype, sums)
    else:
        yield from _lacks_of_bytes(weight, problem.dtype)
    if weight.scale_dtype == "f8_e4m3":  # no instruction converts f8_e4m3 elsewhere
        yield from support.choice_reason("OPF-S001", "target.arch with scales of f8_e4m3", target.arch, ("sm_89", "sm_90a"))


def _lacks_of_bytes(weight: Weight, dtype: str) -> Iterator[Reason]:
    """Reasons against 8-bit codes whose numbers would need two terms in the type of x."""
    if way_of(weight, dtype) == "halves":
        hint = 'Set dequantise="rounded", or use one scale for each column.'
        yield from support.choice_reason("OPF-S003", "weight_format.dequantise", weight.dequantise, ("rounded",), hint)
    if weight.dequantise == "rounded":
        yield from support.choice_reason("OPF-S003", "weight_format.global_scale", weight.global_scale, (False,))


@at_any_size
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target, False))


@at_any_size
def _unfit_bytes(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target, True))


def unfit_sizes(problem: Product) -> tuple[Reason, ...]:
    """Reasons that depend on sizes, which `_unfit` must not cache."""
    return tuple(support.choice_reason("OPF-S003", "k == 0", problem.k == 0, (False,)))


def _declines(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or unfit_sizes(problem)


def _declines_bytes(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit_bytes(problem, target) or unfit_sizes(problem)


CANDIDATE = candidate(_FORM, _declines, _shape)
BYTES = candidate(_BYTE_FORM, _declines_bytes, _shape_of_bytes)
