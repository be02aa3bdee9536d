"""Exact tests of every attention op: visits, needles, V = 1, one key, poison, and equivalent calls."""

import pytest

from opfacade.select.registry import examples
from opfacade.testing import guarded, matrix, problems
from opfacade.testing.families.attention import metamorphic, structural
from opfacade.testing.families.attention.requests import changed
from opfacade.testing.subject import Subject
from tests.support.accepted import accepted
from tests.support.build_first import build_first
from tests.support.faulty_subjects import Faulty

ATTENTION = ("paged_prefill", "paged_decode", "ragged_prefill", "mla_decode")
SPECIAL = [op for op in problems.SPECIAL if op in ATTENTION]
RANDOM_CPU, RANDOM_GPU = 1, 24
CHECKS = (*structural.CHECKS, *metamorphic.CHECKS)
KINDS = matrix.attention()

check_ids = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


def each_kind():
    """(kind, check) pairs. Most checks test each request separately, so a short run omits them for large batches."""
    for kind, descriptor in KINDS.items():
        for check in CHECKS:
            short = descriptor.batch_size <= 32 or check is structural.every_key_is_visited_once
            yield pytest.param(kind, check, id=f"{kind}-{check.__name__}", marks=() if short else pytest.mark.heavy)


of_kinds = pytest.mark.parametrize(("kind", "check"), list(each_kind()))


def in_turn():
    """The same pairs for the reference, which has no splits, so a short run needs fewer: all checks for the first kind of each
    op, and one check for each other kind. The other pairs are heavy."""
    firsts = {descriptor.op: kind for kind, descriptor in reversed(KINDS.items())}.values()
    for turn, kind in enumerate(KINDS):
        for number, check in enumerate(CHECKS):
            due = kind in firsts or number == turn % len(CHECKS)
            yield pytest.param(kind, check, id=f"{kind}-{check.__name__}", marks=() if due else pytest.mark.heavy)


@pytest.mark.parametrize(("kind", "check"), list(in_turn()))
def test_the_reference_is_exact_where_it_must_be(kind, check):
    assert check(Subject(KINDS[kind], "reference", "cpu"), seed=3) == []


@check_ids
@pytest.mark.parametrize("op", ATTENTION)
@pytest.mark.parametrize("seed", range(RANDOM_CPU))
def test_the_reference_is_exact_on_random_problems(op, seed, check):
    assert check(Subject(problems.random_descriptor(op, seed, tokens=600), "reference", "cpu"), seed) == []


@check_ids
@pytest.mark.parametrize("op", SPECIAL)
@pytest.mark.parametrize("seed", range(RANDOM_CPU))
def test_the_reference_is_exact_on_special_problems(op, seed, check):
    assert check(Subject(problems.special_descriptor(op, seed, tokens=600), "reference", "cpu"), seed) == []


@pytest.fixture(scope="session")
def _kinds_built():
    build_first(matrix.matrix().values())


@pytest.fixture(scope="session")
def _random_built():
    build_first(problems.random_descriptor(op, seed) for op in ATTENTION for seed in range(RANDOM_GPU))


@pytest.mark.gpu
@pytest.mark.usefixtures("_kinds_built")
@of_kinds
def test_cuda_is_exact_where_it_must_be(kind, check):
    for seed in (3, 4):
        assert check(Subject(KINDS[kind], "cuda", "cuda"), seed) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("_random_built")
@check_ids
@pytest.mark.parametrize(("op", "seed"), [(op, seed) for op in ATTENTION for seed in range(RANDOM_GPU)])
def test_cuda_is_exact_on_random_problems(op, seed, check):
    assert check(accepted(Subject(problems.random_descriptor(op, seed), "cuda", "cuda")), seed) == []


@pytest.mark.gpu
@check_ids
@pytest.mark.parametrize("descriptor", [e for e in examples() if e.op in ATTENTION], ids=lambda d: d.op)
def test_cuda_is_exact_on_the_examples(descriptor, check):
    assert check(accepted(Subject(descriptor, "cuda", "cuda")), seed=5) == []


@pytest.fixture(scope="session")
def _special_built():
    build_first(problems.special_descriptor(op, seed) for op in SPECIAL for seed in range(RANDOM_GPU))


@pytest.mark.gpu
@pytest.mark.usefixtures("_special_built")
@check_ids
@pytest.mark.parametrize(("op", "seed"), [(op, seed) for op in SPECIAL for seed in range(RANDOM_GPU)])
def test_cuda_is_exact_on_special_problems(op, seed, check):
    assert check(accepted(Subject(problems.special_descriptor(op, seed), "cuda", "cuda")), seed) == []


DECODE = changed(KINDS["decode-fixed-odd-window-block"], window_left=-1)
CAUGHT = {
    "drops_a_key": structural.every_key_is_visited_once,
    "takes_a_wrong_page": structural.every_key_is_visited_once,
    "swaps_heads": structural.a_needle_is_found,
    "loses_mass": structural.equal_values_stay,
    "reads_past_the_end": structural.what_is_unused_does_not_matter,
    "forgets_rows": structural.one_key_gives_its_value,
    "sees_addresses": metamorphic.pages_may_lie_anywhere,
}


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_fault_is_seen_by_its_check(fault):
    assert CAUGHT[fault](Faulty(DECODE, "reference", "cpu", fault), 3) != []
    assert CAUGHT[fault](Faulty(DECODE, "reference", "cpu", "right"), 3) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("right", []),
        ("forgets_rows", ["o was not written everywhere"]),
        ("writes_an_input", ["q was written"]),
        ("writes_beside", ["written past o", "written past o"]),
    ],
)
def test_canaries_see_what_a_call_must_not_do(fault, said):
    subject = Faulty(DECODE, "reference", "cpu", fault)
    assert guarded.run(subject, subject.args(3)) == said
