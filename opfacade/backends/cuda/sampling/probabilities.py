"""CUDA filtered distributions: a cluster keeps a row in shared memory and filters it."""

from __future__ import annotations

from opfacade.backends.cuda.sampling.guarantee import promised
from opfacade.backends.cuda.sampling.sample import BESIDE_LOGITS, Facts, set_facts
from opfacade.backends.cuda.sampling.split import RowKernel, ctas_of, held_bytes
from opfacade.core.model import INT32_MAX
from opfacade.core.target import Target
from opfacade.plans.sampling import ProbabilitiesDescriptor


def _facts(descriptor: ProbabilitiesDescriptor) -> Facts:
    facts = set_facts(descriptor, ("form", "temperature", "top_k", "top_p", "min_p", "num_valid"))
    return facts | ({"order": descriptor.order} if descriptor.top_k and descriptor.top_p else {})


def _numbers(descriptor: ProbabilitiesDescriptor, target: Target) -> tuple[int, int, int]:
    limit = INT32_MAX if descriptor.max_top_k is None else descriptor.max_top_k
    return limit, ctas_of(descriptor.vocab, target), held_bytes(target, BESIDE_LOGITS)


PROBABILITIES = RowKernel(
    descriptor=ProbabilitiesDescriptor,
    template="sampling/probabilities",
    impl="held_rows",
    constants=_facts,
    dtypes=lambda descriptor: (("x", descriptor.dtype),),
    in_dtypes=("dtype",),
    guarantee=promised("test_probabilities.py", "test_probabilities.py"),
    numbers=_numbers,
)
