"""The reference of rotary embeddings: its program, the formula of transformers, refusals and reports."""

import math

import pytest
import torch

from opfacade import Plan, Target, load_descriptor
from opfacade.errors import ArgumentError, DescriptorError, IndexDataError
from opfacade.plans.elementwise import MapDescriptor, MapPlan
from opfacade.plans.rotary import EXAMPLES, RotaryArgs, RotaryDescriptor, RotaryPlan
from opfacade.programs.fields import Input, Output
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from tests.families.rotary.forms import FORMS, problem, spread

CPU = Target.cpu()


def by_program(descriptor, x, args):
    """Evaluates the program of each head as a map."""
    table, positions = args.cos_sin_cache, args.positions.view(descriptor.groups, -1).long()
    shapes = {"x": x.shape, "table": table.shape, "positions": positions.shape}
    dtypes = {"x": descriptor.dtype, "table": descriptor.table_dtype, "positions": "i64"}
    made = MapDescriptor(
        shape=tuple(x.shape),
        inputs=tuple(Input(name=name, dtype=dtypes[name], shape=tuple(shape)) for name, shape in shapes.items()),
        outputs=(Output(name="out", dtype=descriptor.dtype, value=descriptor.program()["out"]),),
    )
    out = torch.empty_like(x)
    MapPlan.select(made, target=CPU).run(made.args(x=x, table=table, positions=positions, out=out))
    return out


def test_the_error_check_detects_one_wrong_element():
    descriptor = problem(7, in_place=False, **next(iter(FORMS.values())))
    args, plan = inputs.make_args(descriptor, seed=2), RotaryPlan.select(descriptor, target=CPU)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku).worst == 0
    args.q_out.view(-1)[:1].add_(1)
    assert numerics.check(descriptor, args, plan.sku).worst > 1


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_the_reference_has_the_bits_of_its_program(form, in_place, dtype):
    descriptor = problem(7, in_place=in_place, **FORMS[form] | {"dtype": dtype})
    args = inputs.make_args(descriptor, seed=2)
    draw = torch.Generator().manual_seed(3)
    for name in ("q", "k"):
        if getattr(args, name) is not None:
            getattr(args, name).copy_(spread(getattr(args, name), draw))
    args.positions.copy_(args.positions.clamp(min=0))
    args.positions.view(-1)[0] = 49
    given = {name: getattr(args, name).clone() for name in ("q", "k") if getattr(args, name) is not None}
    RotaryPlan.select(descriptor, target=CPU).run(args)
    for name, out in descriptor.written(args).items():
        assert not bool(differs(out, by_program(descriptor, given[name], args)).any())


def rotate_half(x):
    return torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)


def test_the_reference_has_the_bits_of_the_formula_of_transformers():
    """The formula is q * cos + rotate_half(q) * sin, with the angles repeated for both halves."""
    q, k, at = torch.randn(9, 4, 64), torch.randn(9, 2, 64), torch.randint(0, 500, (9,))
    angle = torch.arange(500)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    args = RotaryArgs(q=q.clone(), k=k.clone(), positions=at, cos_sin_cache=torch.cat([angle.cos(), angle.sin()], -1))
    Plan.select(problem(9, num_qo_heads=4, dtype="f32"), target=CPU).run(args)
    cos, sin = (torch.cat([part, part], -1)[at][:, None] for part in (angle.cos(), angle.sin()))
    assert torch.equal(args.q, q * cos + rotate_half(q) * sin)
    assert torch.equal(args.k, k * cos + rotate_half(k) * sin)


def test_q_and_k_may_be_views_of_one_tensor():
    qkv, descriptor = torch.randn(9, 8, 64), problem(9, dtype="f32")
    args = inputs.make_args(descriptor, seed=1)
    apart = RotaryArgs(q=qkv[:, :5].clone(), k=qkv[:, 5:7].clone(), positions=args.positions, cos_sin_cache=args.cos_sin_cache)
    plan, v = Plan.select(descriptor, target=CPU), qkv[:, 7:].clone()
    plan.run(apart)
    plan.run(RotaryArgs(q=qkv[:, :5], k=qkv[:, 5:7], positions=args.positions, cos_sin_cache=args.cos_sin_cache))
    assert torch.equal(qkv, torch.cat([apart.q, apart.k, v], 1))


def test_inverse_undoes_the_rotation():
    q = torch.randn(9, 4, 64)
    descriptor = problem(9, num_qo_heads=4, num_kv_heads=0, dtype="f32")
    args = inputs.make_args(descriptor, seed=1)
    args.q.copy_(q)
    Plan.select(descriptor, target=CPU).run(args)
    assert not torch.allclose(args.q, q, atol=0.1)
    Plan.select(problem(9, num_qo_heads=4, num_kv_heads=0, dtype="f32", inverse=True), target=CPU).run(args)
    torch.testing.assert_close(args.q, q)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("sections", [None, (8, 12, 12)])
def test_rows_with_a_negative_position_are_skipped(in_place, sections):
    descriptor = problem(6, in_place=in_place, sections=sections)
    args = inputs.make_args(descriptor, seed=4)
    args.positions.fill_(3)
    args.positions[..., 2] = -1
    args.positions[-1 if sections else ..., 5] = -(2**40)
    before = descriptor.written(args)["q"].clone()
    Plan.select(descriptor, target=CPU).run(args)
    after = descriptor.written(args)["q"]
    changed = differs(after, before).flatten(1).any(1).tolist()
    assert changed == [True, True, False, True, True, False]


def test_a_position_past_the_table_uses_the_last_row_of_the_table():
    descriptor = problem(4)
    args = inputs.make_args(descriptor, seed=5)
    args.positions.copy_(torch.tensor([49, 50, 2**40, 0]))
    args.q[:] = args.q[:1]
    Plan.select(descriptor, target=CPU).run(args)
    assert torch.equal(args.q[1], args.q[0])
    assert torch.equal(args.q[2], args.q[0])
    assert not torch.equal(args.q[3], args.q[0])


def test_an_empty_table_leaves_q_unchanged():
    args = inputs.make_args(problem(4), seed=5)
    args = RotaryArgs(q=args.q, k=args.k, positions=args.positions, cos_sin_cache=args.cos_sin_cache[:0])
    before = args.q.clone()
    Plan.select(problem(4), target=CPU).run(args)
    assert torch.equal(args.q, before)


@pytest.mark.parametrize("level", ["indices", "full"])
def test_validation_checks_positions_against_the_table(monkeypatch, level):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    descriptor = problem(5)
    args = inputs.make_args(descriptor, seed=6)
    args.positions.copy_(torch.tensor([0, -1, 49, 7, 7]))
    plan = Plan.select(descriptor, target=CPU)
    plan.run(args)
    before = args.q.clone()
    for value in (50, -2, 2**40):
        args.positions[3] = value
        with pytest.raises(IndexDataError, match=rf"positions\[3\] expected a value in \[-1, 50\), got {value}"):
            plan.run(args)
        assert torch.equal(args.q, before)
    short = RotaryArgs(q=args.q, k=args.k, positions=args.positions, cos_sin_cache=args.cos_sin_cache[:49])
    args.positions[3] = 7
    with pytest.raises(IndexDataError, match=r"positions\[2\] expected a value in \[-1, 49\), got 49"):
        plan.run(short)


@pytest.mark.parametrize("count", [0, 3, 5, -1, 6])
def test_rows_past_num_valid_are_not_written(count):
    descriptor = problem(5, num_valid=True)
    args = inputs.make_args(descriptor, seed=7)
    args.positions.fill_(9)
    args.q.fill_(1.5)
    args.num_valid.fill_(count)
    Plan.select(descriptor, target=CPU).run(args)
    rows = count if 0 <= count <= 5 else 0
    assert [bool((row != 1.5).any()) for row in args.q] == [i < rows for i in range(5)]


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.op == "rotary"], ids=str)
def test_each_example_survives_serialisation_and_keeps_its_bound(example):
    assert load_descriptor(example.canonical_json()) == example
    plan = RotaryPlan.select(example, target=CPU)
    for seed in range(3):
        args = inputs.make_args(example, seed=seed)
        before = numerics.snapshot(example, args)
        plan.run(args)
        assert numerics.check(example, args, plan.sku, before=before).worst == 0


def test_interleaved_sections_equal_those_of_qwen3_vl():
    """The expected sections come from a loop over slices, as in the code of the model."""
    descriptor = problem(1, head_dim=128, rotary_dim=128, sections=(24, 20, 20), section_order="interleaved")
    want = [0] * 64
    for group, first in ((1, 1), (2, 2)):
        want[first : 3 * descriptor.sections[group] : 3] = [group] * len(range(first, 3 * descriptor.sections[group], 3))
    assert [descriptor.section_of(pair) for pair in range(64)] == want


@pytest.mark.parametrize(
    ("fields", "argument", "word"),
    [
        ({"rotary_dim": 63}, "rotary_dim", "an even number"),
        ({"rotary_dim": 66}, "rotary_dim", "at most head_dim - rotary_offset = 64"),
        ({"rotary_offset": 2}, "rotary_dim", "= 62"),
        ({"rotary_offset": 64}, "rotary_offset", "below head_dim"),
        ({"sections": (16, 15)}, "sections", "whose sum is 32, the number of pairs"),
        ({"sections": (32,)}, "sections", "at least 2"),
        ({"sections": (31, 0, 1)}, "sections.1", "greater than or equal to 1"),
        ({"section_order": "interleaved"}, "section_order", "without sections"),
        ({"dtype": "f8_e4m3"}, "dtype", "f16"),
        ({"positions": "u32"}, "positions", "i32"),
        ({"num_qo_heads": 0}, "num_qo_heads", "greater than or equal to 1"),
        ({"num_kv_heads": -1}, "num_kv_heads", "greater than or equal to 0"),
    ],
)
def test_contradictory_fields_are_refused(fields, argument, word):
    with pytest.raises(DescriptorError, match=word) as caught:
        problem(4, **fields)
    assert caught.value.issues[0].argument == argument


def test_operands_of_a_wrong_shape_are_refused():
    descriptor = problem(4)
    args = inputs.make_args(descriptor, seed=8)
    plan = RotaryPlan.select(descriptor, target=CPU)
    with pytest.raises(ArgumentError, match="cos_sin_cache expected shape"):
        plan.run(RotaryArgs(q=args.q, k=args.k, positions=args.positions, cos_sin_cache=args.cos_sin_cache[:, :32]))
    with pytest.raises(ArgumentError, match="positions expected"):
        plan.run(RotaryArgs(q=args.q, k=args.k, positions=args.positions.int(), cos_sin_cache=args.cos_sin_cache))
    with pytest.raises(ArgumentError, match="OPF-A040"):
        plan.run(RotaryArgs(q=args.q, k=args.q[:, :2], positions=args.positions, cos_sin_cache=args.cos_sin_cache))
    none = RotaryDescriptor(total_num_rows=0, num_qo_heads=1, num_kv_heads=0, head_dim=4, rotary_dim=4, dtype="f32")
    empty = torch.empty(0, 1, 4)
    Plan.select(none, target=CPU).run(
        RotaryArgs(q=empty, positions=torch.empty(0, dtype=torch.int64), cos_sin_cache=torch.full((3, 4), math.nan))
    )
