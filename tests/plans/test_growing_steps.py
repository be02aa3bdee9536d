"""At any number of rows, a composite plan has the steps that the descriptor creates."""

import pytest

from opfacade import Preference, Target, explain
from opfacade.core import descriptor
from opfacade.core.descriptor import forget_specializations, operands_of
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.model import INT32_MAX
from opfacade.core.operands import numel
from opfacade.errors import DescriptorError
from opfacade.plans._composites import choices as _choices
from opfacade.plans._composites import composed as _composed
from opfacade.plans._composites.growing import Growing, growing_of, resized, steps_of
from opfacade.plans._composites.steps import Step, fitted, places, together
from opfacade.plans.moe import MoeSortDescriptor
from opfacade.select.registry import candidates_for, examples

TARGETS = [Target.parse(name) for name in ("sm_80", "sm_90a")]
GROWING = [one for one in examples() if getattr(one, "grows", "")]
SIZE_FREE = [one for one in examples() if any(candidate.size_free for candidate in candidates_for(type(one)))]


def at(example, rows):
    return type(example)(**(dict(example) | {example.grows: rows}))


def grown(example, times):
    """The example with sizes multiplied by `times`; sizes that must not change are kept."""
    for name in sorted(example.sizes):
        size = getattr(example, name)
        larger = tuple(one * times for one in size) if isinstance(size, tuple) else size if size is None else size * times
        try:
            example = type(example)(**(dict(example) | {name: larger}))
        except DescriptorError:
            continue
    return example


def named(one):
    return f"{one.op}-{one.digest()[:6]}"


@pytest.mark.parametrize("example", GROWING, ids=named)
def test_the_steps_at_any_number_of_rows_equal_those_of_the_descriptor(example):
    forget_specializations()  # removes keys that earlier tests may have created
    for rows in (1, 2, 5, 4099):
        problem = at(example, rows)
        found, wanted = steps_of(problem), problem.steps()
        assert found == wanted
        assert [operands_of(step.problem) for step in found] == [operands_of(step.problem) for step in wanted]
        assert [step.problem.canonical_json() for step in found] == [step.problem.canonical_json() for step in wanted]
        assert [step.problem.specialization for step in found] == [step.problem.specialization for step in wanted]
        growing = growing_of(problem)
        assert growing.bytes_at(rows) == places(operands_of(problem), wanted)[1]


@pytest.mark.parametrize("example", GROWING, ids=named)
def test_steps_are_right_after_specialization_keys_were_forgotten(example, monkeypatch):
    monkeypatch.setattr(descriptor, "_MAX_KINDS", 1)
    forget_specializations()
    problem = at(example, 3)
    assert growing_of(problem) is not None
    assert steps_of(problem) == problem.steps()
    forget_specializations()


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("example", GROWING, ids=named)
def test_every_candidate_gives_the_same_answer_with_and_without_growing_steps(example, target, monkeypatch):
    problems = [at(example, rows) for rows in (0, 1, 7, 300, 5000)]

    def answers():
        forget_specializations()
        for problem in problems:
            options = explain(problem, Preference(), target).options
            yield [(one.sku and one.sku.id, one.workspace_size, one.reasons) for one in options]

    grown = list(answers())
    monkeypatch.setattr(_choices, "growing_of", lambda problem: None)
    monkeypatch.setattr(_composed, "steps_of", lambda problem: problem.steps())
    assert list(answers()) == grown


@pytest.mark.parametrize("example", GROWING, ids=named)
def test_the_choice_for_other_rows_equals_a_separate_choice(example, monkeypatch):
    """The answers are compared with forgotten choices and with the choices of earlier rows, also after the compiler became too
    old."""
    problems = [at(example, rows) for rows in (1, 3, 8, 31, 65, 100, 257, 1000, 4096, 16384)]

    def answer(problem):
        return [
            (one.sku and one.sku.id, one.workspace_size, one.reasons) for one in explain(problem, target=TARGETS[1]).options
        ]

    forget_specializations()
    for release in ((13, 3), (12, 8), None):
        monkeypatch.setattr("opfacade.backends.cuda.ptxas.release", lambda release=release: release)
        kept = [answer(problem) for problem in (*problems, *problems[::-1])]
        with monkeypatch.context() as patch:
            patch.setattr(_choices, "growing_of", lambda problem: None)
            forgotten = [forget_specializations() or answer(problem) for problem in problems]
        assert kept == [*forgotten, *forgotten[::-1]]


def test_layers_with_other_widths_have_other_steps():
    for hidden, width in ((64, 32), (64, 48), (96, 32)):
        problem = type(GROWING[0])(**(dict(GROWING[0]) | {"hidden": hidden, "width": width, "total_num_rows": 300}))
        assert steps_of(problem) == problem.steps()


def test_the_workspace_includes_the_largest_workspace_of_a_step(monkeypatch):
    """A product with x of any stride would copy x to its workspace; the steps of a layer need no workspace."""
    found = [_choices.Choice("one", None, (), None, size) for size in (0, 4096, 512)]
    assert _choices.answer_of(found, 1000).workspace == 1024 + 4096


def test_fused_moe_is_the_only_op_with_growing_steps():
    assert {one.op for one in GROWING} == {"fused_moe"}


@pytest.mark.parametrize("example", SIZE_FREE, ids=named)
def test_a_candidate_that_is_independent_of_sizes_gives_the_same_answer_at_all_sizes(example):
    for one in [candidate for candidate in candidates_for(type(example)) if candidate.size_free]:
        for target in TARGETS:
            found = set()
            for times in (1, 3, 1000):
                problem = grown(example, times)
                assert times == 1 or problem != example
                why = tuple(one.declines(problem, target))
                found.add((why, None if why else (one.sku(problem, target).id, one.workspace(problem, target))))
            assert len(found) == 1, one.name


def test_a_resized_descriptor_equals_the_validated_one():
    one = MoeSortDescriptor(total_num_rows=3, top_k=2, experts=5)
    wanted, found = MoeSortDescriptor(total_num_rows=700, top_k=2, experts=5), resized(one, {"total_num_rows": 700})
    assert found == wanted
    assert hash(found) == hash(wanted)
    assert repr(found) == repr(wanted)
    assert found.specialization is wanted.specialization
    assert found.revalidated() == wanted
    assert one.total_num_rows == 3


@pytest.mark.parametrize("example", GROWING[:3], ids=named)
def test_too_many_rows_are_refused_as_without_growing_steps(example):
    most = growing_of(example).most
    widest = max(
        numel(spec) * ITEMSIZE[spec.dtype] for step in at(example, 1).steps() for spec in operands_of(step.problem).values()
    )
    assert most * widest < 2**63
    assert most * example.top_k <= INT32_MAX
    problem = resized(example, {"total_num_rows": INT32_MAX})
    assert growing_of(problem) is None
    with pytest.raises(DescriptorError):
        steps_of(problem)


def test_a_size_that_is_not_a_multiple_of_the_rows_is_an_error():
    def steps(rows):
        return (Step("sort", MoeSortDescriptor(total_num_rows=rows, top_k=2, experts=5), {}),)

    assert Growing("rows", steps(3), steps(6), {}).factors == ({"total_num_rows": 3},)
    with pytest.raises(ValueError, match="total_num_rows"):
        Growing("rows", steps(3), steps(4), {})
    other = (Step("sort", MoeSortDescriptor(total_num_rows=2, top_k=3, experts=5), {}),)
    with pytest.raises(ValueError, match="not one step"):
        Growing("rows", steps(1), other, {})


def test_tensors_of_one_step_do_not_overlap_and_the_largest_is_first():
    others = together([(0, 1), (1, 2), (2, 3), (3, 3)])
    assert others == [[1], [0, 2], [1, 3], [2]]
    assert fitted([256, 512, 256, 256], others) == ([512, 0, 512, 0], 768)
    assert fitted([], []) == ([], 0)
    assert fitted([256, 256], [[1], [0]]) == ([0, 256], 512)
