"""Products of ranges of k on CUDA, for gradients of experts' weights: the tiles of one product per group, whose k is read on
the device."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.backends.cuda import ptxas, support
from opfacade.backends.cuda.matmul.kernel import ARCH, FP8, HALVES, INTEGERS, Form, Shape, candidate, lacks_of_bytes
from opfacade.backends.cuda.matmul.tiles import Sizes, tile_of
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Reason
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans.matmul import GroupedMatmulDescriptor

# A row has the same bits as in a single product of its group with order="k".
_FORM = Form(
    descriptor=GroupedMatmulDescriptor,
    template="matmul/k_groups",
    impl="wgmma_k_groups",
    in_any_batch=dict.fromkeys(
        ("matmul-mma16", "matmul-mma8", "matmul-s32"),
        "tests/families/matmul/test_k_groups_kernel.py::test_a_group_has_the_bits_of_its_product_alone",
    ),
    on_a_gpu="tests/families/matmul/test_grouped_gpu.py::test_a_group_of_k_has_the_bits_of_its_product_on_a_gpu",
)


def _shape(problem: GroupedMatmulDescriptor, target: Target) -> Shape:
    """The tile for ranges of equal length, because the real lengths are on the device."""
    sms = min(target.sm_count, problem.sm_limit or target.sm_count)
    least = 64 if problem.weight_layout == "kn" else 32
    k, columns = -(-problem.k // problem.groups), problem.n * problem.columns
    sizes = Sizes(problem.total_num_rows, columns, k, problem.groups, least, ITEMSIZE[problem.dtype])
    return Shape(tile_of(sizes._replace(parts=problem.dtype in FP8), sms), None)


def _lacks(problem: GroupedMatmulDescriptor, target: Target) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S001", "target.arch", target.arch, (ARCH,))
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, (*HALVES, *FP8, *INTEGERS))
    yield from support.choice_reason("OPF-S003", "layout", problem.layout, ("k",))
    if problem.dtype not in HALVES:
        yield from lacks_of_bytes(problem)


@at_any_size
def _unfit(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _declines(problem: GroupedMatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return _unfit(problem, target) or ptxas.reasons()


CANDIDATE = candidate(_FORM, _declines, _shape)
