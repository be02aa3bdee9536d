"""CUDA top-k: a cut of a row that a cluster holds, and a sort of what is kept."""

from __future__ import annotations

from opfacade.backends.cuda.sampling.guarantee import promised
from opfacade.backends.cuda.sampling.sample import Facts, set_facts
from opfacade.backends.cuda.sampling.split import RowKernel, ctas_of, held_bytes
from opfacade.core.target import Target
from opfacade.plans.sampling import TopKDescriptor

_BESIDE_ROW = 48 * 1024  # kTopKShared


def _facts(descriptor: TopKDescriptor) -> Facts:
    return set_facts(descriptor, ("num_valid",))


def _numbers(descriptor: TopKDescriptor, target: Target) -> tuple[int, int]:
    return ctas_of(descriptor.vocab, target), held_bytes(target, _BESIDE_ROW)


TOP_K = RowKernel(
    descriptor=TopKDescriptor,
    template="sampling/topk",
    impl="cut_and_sort",
    constants=_facts,
    dtypes=lambda descriptor: (("x", descriptor.dtype),),
    in_dtypes=("dtype",),
    guarantee=promised("test_top_k.py", "test_top_k.py", exact=True),
    numbers=_numbers,
)
