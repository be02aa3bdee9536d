"""Faults planted in the verification of drafts."""

from tests.mutation.mutant import Mutant

_TESTS = "tests/families/sampling/test_verify_by_hand.py"
_LINKS = "opfacade/plans/_sampling/links.py"
_KERNEL = "kernels/sampling/verify.cuh"


def _kernel(name, old, new, words="by_hand and subject"):
    return Mutant(f"verify: {name}", _KERNEL, ((old, new),), tests=f"{_TESTS} -k {words}")


def _links(name, *changes):
    """changes: pairs of old and new text."""
    pairs = tuple(zip(changes[::2], changes[1::2], strict=True))
    return Mutant(f"verify: {name}", _LINKS, pairs, tests="tests/families/sampling/test_verify_links.py")


FAULTS = (
    _links("siblings are never judged", "yield name, node", "if name == FIRST:\n                yield name, node"),
    _links("a link may lead to the root", "{0}, [(FIRST, 0)]", "set(), [(FIRST, 0)]", "0 < to", "0 <= to"),
    _links("a link below none is none", "if to == -1:", "if to < 0:"),
    _links(
        "only links to drafts that are not there are wrong",
        "yield name, node",
        "if to not in met:\n                yield name, node",
    ),
    _kernel(
        "a draft is compared with itself alone",
        "found |= i != draft && drafts_[i]",
        "found |= i == draft && false && drafts_[i]",
    ),
)
