"""CUDA verification of drafts: acceptance in f32, as specified, and one Gumbel-max draw."""

from __future__ import annotations

from typing import Any

from opfacade.backends.cuda.sampling.guarantee import promised
from opfacade.backends.cuda.sampling.sample import Facts
from opfacade.backends.cuda.sampling.split import RowKernel, ctas_of
from opfacade.core.target import Target
from opfacade.plans.sampling import VerifyDraftsDescriptor


def _facts(descriptor: VerifyDraftsDescriptor) -> Facts:
    """greedy and coupled use the same kernel."""
    facts: Facts = {"kind": descriptor.kind if descriptor.races else "equal"}
    return facts | ({"num_valid": True} if descriptor.num_valid else {})


def _numbers(descriptor: VerifyDraftsDescriptor, target: Target) -> tuple[Any, ...]:
    ctas = ctas_of(descriptor.vocab, target) if descriptor.races else 1
    return descriptor.stream, descriptor.threshold_single, descriptor.threshold_acc, ctas


VERIFY = RowKernel(
    descriptor=VerifyDraftsDescriptor,
    template="sampling/verify_drafts",
    impl="accept_and_race",
    revision=2,
    constants=_facts,
    dtypes=lambda descriptor: (),
    guarantee=lambda d, _: promised("test_verify.py", "test_verify.py", exact=not d.races),
    numbers=_numbers,
)
