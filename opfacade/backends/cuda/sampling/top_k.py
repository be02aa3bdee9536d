"""CUDA top-k: a cluster keeps a row in shared memory, selects the top values and sorts them."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.backends.cuda import support
from opfacade.backends.cuda.sampling.guarantee import promised
from opfacade.backends.cuda.sampling.sample import Facts, set_facts
from opfacade.backends.cuda.sampling.split import RowKernel, ctas_of, held_bytes
from opfacade.core.candidate import Reason
from opfacade.core.target import Target
from opfacade.plans.sampling import TopKDescriptor

_HELD, _ENTRY = 16 * 1024, 16  # kHeldShared, and the bytes per entry in both lists together
_LISTED, _SORTED = 2048, 8192  # kMostTopK, kMostSorted


def _facts(descriptor: TopKDescriptor) -> Facts:
    return set_facts(descriptor, ("num_valid", "windows"))


def _entries(descriptor: TopKDescriptor) -> int:
    """Entries of a list, a power of two."""
    return max(_LISTED, 1 << (descriptor.k - 1).bit_length())


def _beside(descriptor: TopKDescriptor) -> int:
    return _HELD + _ENTRY * _entries(descriptor)


def _numbers(descriptor: TopKDescriptor, target: Target) -> tuple[int, int, int]:
    return ctas_of(descriptor.vocab, target), held_bytes(target, _beside(descriptor)), _entries(descriptor)


def _lacks(descriptor: TopKDescriptor, target: Target) -> Iterator[Reason]:
    """Reasons against a k whose list does not fit in shared memory; torch sorts such lists."""
    most = _SORTED
    while _HELD + _ENTRY * most + 1024 > target.max_shared_memory and most > _LISTED:
        most //= 2
    yield from support.limit_reason("OPF-S003", "k", descriptor.k, most)


TOP_K = RowKernel(
    descriptor=TopKDescriptor,
    template="sampling/topk",
    impl="cut_and_sort",
    constants=_facts,
    dtypes=lambda descriptor: (("x", descriptor.dtype),),
    in_dtypes=("dtype",),
    guarantee=promised("test_top_k.py", "test_top_k.py", exact=True),
    numbers=_numbers,
    accepts=_lacks,
)
