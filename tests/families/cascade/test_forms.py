"""Merges of a list of states and merges into state 0 give the same numbers as stacked states and write nothing else."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade import plan as plans
from opfacade.errors import AliasError, ArgumentError, ArgumentTypeError, DescriptorError, GuaranteeViolation, ShapeError
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from opfacade.testing import numerics
from opfacade.testing.families.attention.requests import same_bits
from opfacade.testing.subject import Subject
from opfacade.tools.crosscheck import replay as replay_crosscheck
from tests import emulator
from tests.families.cascade.test_reference import states
from tests.support.problems import on_reference
from tests.support.sound_calls import assert_refused

FORMS = [("list", False), ("stacked", True), ("list", True)]
IDS = ["list", "in-place", "list-in-place"]


def as_form(descriptor, args, form, in_place):
    """The same merge in another form, on separate memory."""
    other = type(descriptor).model_validate(descriptor.model_dump() | {"states": form, "in_place": in_place})
    o, lse = args.states_o.clone(), args.states_lse.clone()
    if form == "list":
        o, lse = [one.clone() for one in o], [one.clone() for one in lse]
    results = {} if in_place else {"o": torch.full_like(args.o, math.nan), "lse": torch.full_like(args.lse, math.nan)}
    return other, MergeStatesArgs(states_o=o, states_lse=lse, **results)


def assert_same(run, plain, form, in_place):
    """Asserts that `run(descriptor, args)` gives the bits of the stacked merge and leaves the other states unchanged."""
    descriptor, args = plain
    other, call = as_form(descriptor, args, form, in_place)
    run(descriptor, args), run(other, call)
    o, lse = other.merged(call)
    assert same_bits(o, args.o)
    assert same_bits(lse, args.lse)
    for given, kept in zip(other.states_of(call), (args.states_o, args.states_lse), strict=True):
        for i in range(int(in_place), descriptor.num_states):
            assert same_bits(given[i], kept[i]), i


def some_empty(problem):
    descriptor, args = problem
    lse = args.states_lse
    lse[torch.rand(lse.shape) < 0.3] = -math.inf
    return descriptor, args


@pytest.mark.parametrize(("form", "in_place"), FORMS, ids=IDS)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_each_form_gives_the_bits_of_stacked_states(count, form, in_place):
    assert_same(lambda d, a: on_reference(d).run(a), some_empty(states(count, 7, seed=count)), form, in_place)


def test_a_list_of_states_becomes_named_operands():
    o, lse = [torch.zeros(2, 3, 8) for _ in range(3)], [torch.zeros(2, 3) for _ in range(3)]
    args = MergeStatesArgs(states_o=o, states_lse=tuple(lse), o=o[0].clone(), lse=lse[0].clone())
    assert (args.states_o, args.states_lse, args.state_o_3) == (None, None, None)
    assert all(getattr(args, f"state_o_{i}") is o[i] and getattr(args, f"state_lse_{i}") is lse[i] for i in range(3))
    again = replace(args, o=o[1])
    assert (again.state_o_2, again.o) == (o[2], o[1])


def test_a_list_of_a_wrong_length_names_the_missing_or_extra_state():
    descriptor, args = as_form(*states(3, 2), "list", False)
    plan, (o, _) = on_reference(descriptor), descriptor.states_of(args)
    few, many = replace(args, states_o=o[:2], state_o_2=None), replace(args, states_o=[*o, o[0].clone()])
    assert_refused(plan, few, ArgumentTypeError, "OPF-A002", "state_o_2", "a torch.Tensor", "None")
    assert_refused(plan, many, ArgumentTypeError, "OPF-A001", "state_o_3", "None for this descriptor")
    nine = replace(args, states_o=[o[0]] * 9)
    assert_refused(plan, nine, ShapeError, "OPF-A008", "states_o", "a list of at most 8 tensors", "a list of 9")
    verdict = plan.can_implement(MergeStatesArgs(states_o=[o[0]] * 9, states_lse=(args.lse,) * 9, o=args.o, lse=args.lse))
    assert [issue.code for issue in verdict.issues] == ["OPF-A008", "OPF-A008"]
    stacked = on_reference(states(3, 2)[0])
    assert_refused(stacked, args, ArgumentTypeError, "OPF-A002", "states_o", "None")


def test_an_in_place_merge_has_no_output_operands_and_state_0_may_not_overlap():
    descriptor, args = as_form(*states(3, 2), "list", True)
    plan = on_reference(descriptor)
    more = replace(args, o=torch.zeros(2, 3, 5, dtype=torch.float16))
    assert_refused(plan, more, ArgumentTypeError, "OPF-A001", "o expected None for this descriptor")
    shared = replace(args, state_o_2=args.state_o_0)
    assert_refused(plan, shared, AliasError, "OPF-A040", "state_o_0", "separate from state_o_2")
    read, call = as_form(*states(3, 2), "list", False)
    assert on_reference(read).can_implement(replace(call, state_o_2=call.state_o_0))


def test_a_list_has_at_most_eight_states():
    fields = {"total_num_rows": 2, "num_heads": 1, "head_dim": 8, "dtype": "f16", "states": "list"}
    for count in (9, 2**31 - 1):  # the refusal comes before any operand is created
        with pytest.raises(DescriptorError, match=rf"num_states expected at most 8 states in a list, got {count}.*Stack them"):
            MergeStatesDescriptor(num_states=count, **fields)
    assert len(MergeStatesDescriptor(num_states=8, **fields).operands()) == 18


def test_the_form_is_in_the_sku_and_the_number_of_states_is_not():
    plain = states(2, 3, dim=64)[0]
    ids = set()
    for form, in_place in [("stacked", False), *FORMS]:
        for count in (2, 5):
            fields = plain.model_dump() | {"states": form, "in_place": in_place, "num_states": count}
            descriptor = MergeStatesDescriptor.model_validate(fields)
            ids.add(Plan.select(descriptor, Preference(backend="cuda"), Target.parse("sm_90a")).sku.id)
    assert len(ids) == 4
    assert not {"states", "in_place"} & set(plain.model_dump())


@pytest.mark.parametrize(("form", "in_place"), FORMS, ids=IDS)
def test_the_error_check_of_an_in_place_merge_uses_the_states_before_it(form, in_place):
    descriptor, args = as_form(*states(3, 4), form, in_place)
    plan, before = on_reference(descriptor), numerics.snapshot(descriptor, args)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
    descriptor.merged(args)[0][1, 1, 1] += 1
    assert numerics.check(descriptor, args, plan.sku, before=before).worst > 1
    if in_place:
        with pytest.raises(ArgumentError, match="OPF-G002"):
            numerics.check(descriptor, args, plan.sku)


def test_the_error_check_detects_a_change_of_another_state():
    descriptor, args = as_form(*states(3, 4), "stacked", True)
    plan, before = on_reference(descriptor), numerics.snapshot(descriptor, args)
    plan.run(args)
    args.states_o[2, 0, 0, 0] += 1
    assert numerics.check(descriptor, args, plan.sku, before=before).worst == math.inf


@pytest.mark.parametrize(("form", "in_place"), FORMS, ids=IDS)
def test_a_cross_check_detects_a_wrong_merge(monkeypatch, tmp_path, form, in_place):
    monkeypatch.setattr(plans, "_selected", {})
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    descriptor, args = as_form(*states(3, 4), form, in_place)
    plan = on_reference(descriptor)
    plan.run(args)
    make = plan._candidate.launcher

    def launcher(*given):
        right = make(*given)

        def launch(call, workspace):
            right(call, workspace)
            descriptor.merged(call)[0][0] += 1

        return launch

    monkeypatch.setattr(plans, "_selected", {})
    wrong = on_reference(descriptor)
    object.__setattr__(wrong, "_candidate", replace(wrong._candidate, launcher=launcher))
    with pytest.raises(GuaranteeViolation) as caught:
        wrong.run(args)
    monkeypatch.setattr(plans, "_selected", {})
    assert replay_crosscheck(caught.value.dump).worst <= 1


# Shapes with several rows per warp, with idle lanes, with few and many states, and with more chunks per row than lanes.
SHAPES = [(128, "bf16"), *(pytest.param(*s, marks=pytest.mark.heavy) for s in ((96, "f16"), (65, "f16"), (256, "f32")))]


@emulator.needed
@pytest.mark.parametrize(("form", "in_place"), FORMS, ids=IDS)
@pytest.mark.parametrize(("dim", "dtype"), SHAPES)
def test_a_kernel_of_each_form_gives_the_bits_of_stacked_states(dim, dtype, form, in_place):
    for count, rows in ((1, 9), (2, 19), (3, 17), (4, 3), (8, 11)):
        plain = some_empty(states(count, rows, dim=dim, dtype=dtype, seed=rows))
        assert_same(lambda d, a: emulator.subject(d).run(a), plain, form, in_place)


@pytest.mark.gpu
@pytest.mark.parametrize(("form", "in_place"), FORMS, ids=IDS)
@pytest.mark.parametrize(("dim", "dtype"), [(128, "bf16"), (96, "f16"), (65, "f16"), (256, "f32")])
def test_each_form_gives_the_bits_of_stacked_states_on_a_gpu(dim, dtype, form, in_place):
    for count, rows in ((1, 9), (2, 1900), (3, 1700), (4, 300), (8, 1100)):
        descriptor, args = some_empty(states(count, rows, dim=dim, dtype=dtype, seed=rows))
        here = replace(args, **{n: getattr(args, n).cuda() for n in ("states_o", "states_lse", "o", "lse")})
        assert_same(lambda d, a: Subject(d, "cuda", "cuda").run(a), (descriptor, here), form, in_place)
