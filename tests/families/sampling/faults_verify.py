"""Faults planted in the verification of drafts."""

from tests.mutation.mutant import Mutant

_TESTS = "tests/families/sampling/test_verify_by_hand.py"
_KERNEL = "kernels/sampling/verify.cuh"


def _kernel(name, old, new, words="by_hand and subject"):
    return Mutant(f"verify: {name}", _KERNEL, ((old, new),), tests=f"{_TESTS} -k {words}")


FAULTS = (
    _kernel(
        "a draft is compared with itself alone",
        "found |= i != draft && drafts_[i]",
        "found |= i == draft && false && drafts_[i]",
    ),
)
