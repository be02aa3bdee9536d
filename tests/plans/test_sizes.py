"""A new size costs little: programs, refusals and SKUs do not depend on sizes and are created once."""

from __future__ import annotations

import json
import sys

import pytest

from opfacade import Plan, Preference, Target, explain, telemetry
from opfacade.backends.cuda.folds.kept import MAX_ROW
from opfacade.core import plan_handles
from opfacade.core.any_size import AtAnySize
from opfacade.core.descriptor import forget_specializations, operands_of
from opfacade.core.model import Model
from opfacade.core.preference import DEFAULT
from opfacade.errors import DescriptorError, UnsupportedError
from opfacade.plan import forget_selections
from opfacade.plans._folds.named import NamedFold
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.softmax import SoftmaxDescriptor
from opfacade.select.first_fit import survey_to_chosen
from opfacade.select.registry import candidates_for, examples
from opfacade.select.selection import survey

TARGET = Target.parse("sm_90a")
ROWS = ("total_num_rows", "batch_size", "shape", "width", "n")
_DESCRIBE, _SELECT = 214, 168  # limits on Python calls; creating a program again takes 500 calls or more
_SELECT_ANY = 54
# Sizes change tiles, splits or workspaces of these. A group of one rank runs the reference, with a warning.
_SELECT_ONE = {
    "matmul": 66,
    "fused_moe": 64,
    "paged_decode": 66,
    "ragged_prefill": 67,
    "paged_prefill": 74,
    "norm": 68,
    "dequantize": 70,
    "quantize": 70,
    "softmax": 78,
    "fold": 100,
    **dict.fromkeys(("collective", "logprob_across", "merge_across", "sample_across", "all_reduce_norm"), 74),
}
NAMED = [one for one in examples() if isinstance(one, NamedFold) or getattr(one, "makes_scales", False)]
OTHER = (1, 5, 130, 4099)


@pytest.fixture(autouse=True)
def _any_assembler(monkeypatch):
    """Makes selection consider the same candidates for any installed compiler."""
    forget_specializations(), forget_selections()
    monkeypatch.setattr("opfacade.backends.cuda.ptxas.release", lambda *wanted: None)
    yield
    forget_specializations(), forget_selections()


def sized(example, rows):
    """The example with another number of rows."""
    field = next(name for name in ROWS if name in type(example).model_fields)
    value = (rows, *example.shape[1:]) if field == "shape" else rows
    return type(example)(**(dict(example) | {field: value}))


def others(example):
    """The example with other sizes; sizes of stored weights stay multiples of groups."""
    return (128, 384, 1024) if example.op in ("pack_weights", "unpack_weights") else OTHER


def of_named(examples):
    return pytest.mark.parametrize("example", examples, ids=lambda one: f"{one.op}-{one.digest()[:6]}")


def calls_of(ask):
    """The number of Python functions that `ask` calls, which is the same on every machine."""
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        ask()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "kind", sorted({type(one) for one in NAMED if isinstance(one, NamedFold)}, key=lambda one: one.__name__)
)
def test_a_program_is_created_once_for_all_row_counts(kind, monkeypatch):
    example = next(one for one in NAMED if type(one) is kind)
    forget_specializations()
    made, program = [], kind.program
    monkeypatch.setattr(kind, "program", lambda self: made.append(self) or program(self))
    for rows in range(1, 1001):
        assert sized(example, rows).folded().shape[0] == rows
    assert len(made) == 1


@of_named(NAMED)
def test_a_resized_program_equals_the_program_of_its_fields(example):
    forget_specializations()
    example.folded()
    for rows in OTHER:
        shared = sized(example, rows)
        told = shared.folded(), operands_of(shared), shared.launched() if has_launched(example) else None
        forget_specializations()
        alone = sized(example, rows)
        assert told == (alone.folded(), operands_of(alone), alone.launched() if has_launched(alone) else None)
        assert told[0].key == alone.folded().revalidated().key


def has_launched(example):
    return getattr(example.quant, "scale", "") == "tensor" if "quant" in type(example).model_fields else False


@of_named(NAMED)
def test_answers_of_candidates_do_not_depend_on_the_order_of_sizes(example):
    told = {}
    for first in (example, None):
        forget_specializations()
        candidates_for(type(example))
        for rows in OTHER:
            problem = sized(example, rows)
            if first is None:
                forget_specializations()
            found = [(tuple(one.declines(problem, TARGET)), one) for one in candidates_for(type(example))]
            answers = [(why, None if why else (one.sku(problem, TARGET), one.workspace(problem, TARGET))) for why, one in found]
            assert told.setdefault(rows, answers) == answers


@of_named([one for one in examples() if one.op in ("pack_weights", "unpack_weights")])
def test_a_conversion_of_weights_has_its_kernels_at_every_size(example):
    told = {}
    for first in (example, None):
        forget_specializations()
        for times in (3, 1, 40):
            problem = type(example)(**(dict(example) | {"n": example.n * times, "k": example.k * times}))
            if first is None:
                forget_specializations()
            for one in candidates_for(type(example)):
                why = tuple(one.declines(problem, TARGET))
                answers = why, None if why else (one.sku(problem, TARGET), one.workspace(problem, TARGET))
                assert told.setdefault((times, one.name), answers) == answers
                specs = () if why or not one.compiles else one.jit_specs(problem, TARGET)
                assert told.setdefault((times, one.name, "specs"), specs) == specs


@of_named(NAMED)
def test_describing_and_selecting_a_new_size_of_a_named_fold_takes_few_calls(example):
    for rows in (5000, 5001):
        Plan.select(sized(example, rows), target=TARGET)
    made = []
    assert calls_of(lambda: made.append(sized(example, 5002))) <= _DESCRIBE
    assert calls_of(lambda: Plan.select(made[0], target=TARGET)) <= _SELECT


@pytest.mark.parametrize("op", sorted({one.op for one in examples()}))
@pytest.mark.filterwarnings("ignore::opfacade.errors.FallbackWarning")
def test_selecting_a_new_size_of_any_op_takes_few_calls(op):
    example = next(one for one in examples() if one.op == op)
    for rows in (4992, 5120):
        Plan.select(sized(example, rows), target=TARGET)
    made = sized(example, 5248)
    assert calls_of(lambda: Plan.select(made, target=TARGET)) <= _SELECT_ONE.get(op, _SELECT_ANY)


@pytest.mark.parametrize("op", sorted({one.op for one in examples()}))
@pytest.mark.filterwarnings("ignore::opfacade.errors.FallbackWarning")
def test_selecting_a_new_size_creates_and_validates_no_model(op, monkeypatch):
    """Programs, SKUs and guarantees are models, so none of them is created again."""
    example = next(one for one in examples() if one.op == op)
    for rows in (4992, 5120):
        Plan.select(sized(example, rows), target=TARGET)
    problem, made = sized(example, 5248), []
    make, validate = type(Model).__call__, Model.model_validate.__func__
    monkeypatch.setattr(type(Model), "__call__", lambda cls, **fields: made.append(cls) or make(cls, **fields))
    monkeypatch.setattr(Model, "model_validate", classmethod(lambda cls, *given: made.append(cls) or validate(cls, *given)))
    Plan.select(problem, target=TARGET)
    assert not made


@pytest.mark.parametrize("example", examples(), ids=lambda one: f"{one.op}-{one.digest()[:6]}")
def test_cached_options_equal_those_of_a_fresh_survey(example):
    for rows in (4096, *others(example), 8192):
        problem = sized(example, rows)
        chosen = survey_to_chosen(problem, DEFAULT, TARGET)
        asked = survey(problem, DEFAULT, TARGET)[: len(chosen)]
        assert [tuple(one) for one in chosen] == [tuple(one) for one in asked]
        assert bool(chosen[-1].reasons) == all(one.reasons for one in survey(problem, DEFAULT, TARGET))


@pytest.mark.parametrize("example", examples(), ids=lambda one: f"{one.op}-{one.digest()[:6]}")
def test_reasons_to_decline_do_not_depend_on_the_size(example):
    for candidate in candidates_for(type(example)):
        found = {}
        for rows in (4096, *others(example)):
            forget_specializations()
            problem = sized(example, rows)
            reasons = candidate.declines(problem, TARGET)
            if isinstance(reasons, AtAnySize):
                assert found.setdefault(repr(key_of(problem)), reasons) == reasons


def key_of(problem):
    """The key of `refused_alike` without the identity of specialization keys."""
    found = problem.refused_alike
    return [*problem.without_sizes(), *(found[1:] if isinstance(found, tuple) else ())]


def test_a_cached_answer_is_used_only_for_its_preference_and_target():
    problem = sized(next(one for one in examples() if one.op == "merge_states"), 5)
    for wanted in (Preference(), Preference(backend="reference"), Preference(forbid=("cuda",)), Preference()):
        for target in (TARGET, Target.parse("sm_80"), Target.parse("sm_75"), Target.cpu()):
            chosen = survey_to_chosen(problem, wanted, target)
            assert [tuple(one) for one in chosen] == [tuple(one) for one in survey(problem, wanted, target)[: len(chosen)]]


def test_candidates_after_the_chosen_one_are_not_evaluated():
    problem, prefer = sized(next(one for one in examples() if one.op == "softmax"), 77), Preference(backend="cuda")
    options = explain(problem, prefer, TARGET).options
    chosen = next(i for i, option in enumerate(options) if not option.reasons)
    assert any(option.reasons for option in options[chosen:])
    telemetry.reset()
    assert Plan.select(problem, prefer, TARGET).sku == options[chosen].sku
    codes = [reason.code for option in options[:chosen] for reason in option.reasons]
    assert telemetry.refusals() == {code: codes.count(code) for code in codes}


@pytest.mark.parametrize("example", examples(), ids=lambda one: f"{one.op}-{one.digest()[:6]}")
def test_the_text_of_a_plan_handle_is_that_of_its_descriptor_at_every_size(example):
    for problem in (example, sized(example, 128), sized(example, 4096)):
        fields = json.loads(problem.canonical_json())
        (template, sizes), again = plan_handles.text_of(problem), plan_handles.text_of(type(problem)(**dict(problem)))
        assert (template, sizes) == again
        assert json.loads(template % sizes) == fields


def test_a_form_contains_every_field_except_sizes():
    one = SoftmaxDescriptor(shape=(4, 8), dtype="f32", mask=True)
    for change in ({"log": True}, {"safe": True}, {"mask": False}, {"temperature": 2.0}, {"axis": 0}, {"shape": (4, 8, 2)}):
        other = SoftmaxDescriptor(**(dict(one) | change))
        assert other.form != one.form
        assert other.folded() == other.program()
    gated = GatedActivationDescriptor(total_num_rows=3, width=256, dtype="bf16", quant={"scale": "token"})
    assert GatedActivationDescriptor(**(dict(gated) | {"total_num_rows": 7, "width": 64})).form is gated.form


def test_a_program_is_not_resized_to_extents_without_a_value():
    program = next(one for one in NAMED if one.op == "quantize" and one.quant.scale == "token").folded()
    assert program.on((0, *program.shape[1:])).shape[0] == 0
    with pytest.raises(DescriptorError, match=r"stages\.0\.axes expected at least one element"):
        program.on((4, 1, 0))


def test_a_row_that_is_too_long_is_refused_after_a_short_one_was_accepted():
    rows = next(one for one in candidates_for(SoftmaxDescriptor) if one.impl == "rows")
    assert not rows.declines(SoftmaxDescriptor(shape=(2, 8), dtype="bf16"), TARGET)
    assert Plan.select(SoftmaxDescriptor(shape=(2, 8), dtype="bf16"), target=TARGET).sku.impl == "rows"
    with pytest.raises(UnsupportedError, match=str(MAX_ROW + 1)):
        Plan.select(SoftmaxDescriptor(shape=(2, MAX_ROW + 1), dtype="bf16"), Preference(backend="cuda"), TARGET)
    for length in (MAX_ROW + 1, MAX_ROW + 2):
        (why,) = rows.declines(SoftmaxDescriptor(shape=(2, length), dtype="bf16"), TARGET)
        assert (why.code, why.got) == ("OPF-S004", str(length))
    assert not rows.declines(SoftmaxDescriptor(shape=(2, MAX_ROW), dtype="bf16"), TARGET)
