"""Faults planted in the verification of drafts."""

from tests.mutation.mutant import Mutant

_TESTS = "tests/families/sampling/test_verify_by_hand.py"
_KERNEL, _REFERENCE = "kernels/sampling/verify.cuh", "opfacade/backends/reference/sampling/verify.py"
_HARNESS = "opfacade/testing/families/sampling/verify.py"


def _kernel(name, old, new, words="by_hand and subject"):
    return Mutant(f"verify: {name}", _KERNEL, ((old, new),), tests=f"{_TESTS} -k {words}")


def _host(name, old, new, words="by_hand and None", file=_REFERENCE, tests=_TESTS):
    return Mutant(f"verify: {name}", file, ((old, new),), tests=f"{tests} -k {words}")


FAULTS = (
    _kernel(
        "the mass of rejected siblings is carried on",
        "rejected = 0, mass = 0.f, toss",
        "rejected = 0, toss",
        "stays_at_its_depth and subject",
    ),
    _kernel("rejected siblings are taken from the next race", "node = child, rejected = 0, mass", "node = child, mass"),
    _kernel("a tree has one coin", "mass = 0.f, toss = coin(accepted);", "mass = 0.f;"),
    _kernel("children have the target of the root", "target_[node * p_.target_row + token] : 0.f", "target_[token] : 0.f"),
    _kernel("a node is raced at its parent", "shared_.node = node, shared_", "shared_.node = 0, shared_"),
    _kernel("the mass is multiplied", "__fdiv_rn(mass, p_.threshold_acc)", "__fmul_rn(mass, p_.threshold_acc)"),
    _kernel("a child is taken by its own mass", "mass = __fadd_rn(mass, own);", "mass = own;"),
    _kernel("no child is likely enough alone", "|| own >= p_.threshold_single))", "))"),
    _kernel(
        "a token that is drafted twice has its mass twice", "shared_.again[child - 1] && is_rejected", "false && is_rejected"
    ),
    _kernel(
        "a draft is compared with itself alone",
        "found |= i != draft && drafts_[i]",
        "found |= i == draft && false && drafts_[i]",
    ),
    _kernel("a chain replaces by the target itself", ": __fsub_rn(target[token], draft[token]);", ": target[token];"),
    _kernel("a chain ignores its draft's share", "__fmul_rn(coin(i), draft(i)[token])", "coin(i)"),
    _kernel("the race has the place of the first draft", "p.offset[at] + shared.accepted, p.stream", "p.offset[at], p.stream"),
    _host(
        "the mass of rejected siblings is carried on, in the reference",
        "node, rejected, mass = child, set(), p.new_zeros(())",
        "node, rejected = child, set()",
        "stays_at_its_depth and None",
    ),
    _host(
        "rejected siblings are taken from the next race, in the reference",
        "node, rejected, mass = child, set(), p.new_zeros(())",
        "node, mass = child, p.new_zeros(())",
    ),
    _host(
        "a token that is drafted twice has its mass twice, in the reference", " and token not in rejected", "", "twice and None"
    ),
    _host("the same, as a distribution", "< descriptor.vocab and token not in rejected", "< descriptor.vocab", "distribution"),
    _host("a child is taken by its own mass, in the reference", "mass = mass + own", "mass = own"),
    _host("a chain replaces by the target itself, in the reference", "(p[i] - q).clamp(min=0)", "p[i]"),
    _host(
        "the harness counts a token that is drafted twice",
        " and token not in rejected else F32(0)",
        " else F32(0)",
        "twice",
        _HARNESS,
        "tests/families/sampling/test_verify.py",
    ),
)
