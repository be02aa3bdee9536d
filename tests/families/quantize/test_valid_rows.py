"""Rows past num_valid do not change a scale and are not written, with one scale for all rows or one per block."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.errors import ArgumentError
from opfacade.plans.quantize import DequantizeDescriptor, Quant, QuantizeDescriptor
from opfacade.testing import guarded, inputs, numerics
from opfacade.testing.batches import changed
from opfacade.testing.families.elementwise import differs
from opfacade.testing.subject import Subject
from tests import emulator
from tests.families.reduction.held import builds_without_spills

CPU, SM_90A, ROWS = Target.cpu(), Target.parse("sm_90a"), 11


def made(kind=QuantizeDescriptor, hidden=40, wide="f32", rows=ROWS, num_valid=True, **quant):
    return kind(total_num_rows=rows, hidden=hidden, dtype=wide, quant=Quant(**quant), num_valid=num_valid)


FORMS = {
    "tensor": made(scale="tensor"),
    "tensor_bf16": made(wide="bf16", hidden=300, scale="tensor", dtype="f8_e5m2"),
    "tensor_i8": made(scale="tensor", dtype="i8", hidden=33),
    "tensor_powers": made(scale="tensor", scale_dtype="f8_e8m0", wide="f16"),
    "block": made(scale="block", block=(4, 24)),
    "block_bf16": made(wide="bf16", scale="block", block=(4, 8), dtype="i8"),
    "block_lines": made(scale="block", block=(1, 16), scale_dtype="f8_e8m0"),
    "block_one": made(scale="block"),
}
BACK = {
    "back_tensor": made(DequantizeDescriptor, wide="bf16", scale="tensor", dtype="i8"),
    "back_block": made(DequantizeDescriptor, scale="block", block=(4, 24)),
    "back_block_bf16": made(DequantizeDescriptor, wide="bf16", scale="block", block=(4, 8), dtype="i8"),
}
EVERY = FORMS | BACK
COUNTS = (0, 1, 4, 6, 10, 11)


def copied(args):
    return replace(args, **{n: t.clone() for n in args.__slots__ if isinstance(t := getattr(args, n), torch.Tensor)})


def drawn(d, valid):
    return inputs.make_args(d, 3, lengths=inputs.DrawnLengths(valid=valid))


def same(one, other):
    return not bool(differs(one.contiguous(), other.contiguous()).any())


def subject_of(on, d, **more):
    if on == "reference":
        return Subject(d, "reference", "cpu")
    if on == "gpu":
        return Subject(d, "cuda", "cuda", **more)
    return emulator.subject(d, **more)


PLACES = [
    "reference",
    pytest.param("emulator", marks=emulator.needed),
    pytest.param("gpu", marks=pytest.mark.gpu),
]


def blocks_of(d, rows):
    """The number of scales along the rows that a call with this many rows reads or writes."""
    return -(-rows // d.quant.block[0]) if d.quant.scale == "block" else 1


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize("name", EVERY)
def test_the_op_equals_the_op_on_the_valid_rows_and_leaves_other_rows_unchanged(name, on):
    d = EVERY[name]
    subject = subject_of(on, d)
    for count in COUNTS:
        args = inputs.make_args(d, 3, subject.device, inputs.DrawnLengths(valid=count))
        before = copied(args)
        subject.run(args)
        assert numerics.check(d, args, subject.plan.sku).worst <= 0
        blocks = blocks_of(d, count)
        assert same(args.out[count:], before.out[count:])
        assert same(args.scale[blocks:], before.scale[blocks:])
        if count == 0:
            continue
        few = changed(d, total_num_rows=count, num_valid=False)
        call = replace(before, x=args.x[:count], out=before.out[:count], scale=before.scale[:blocks], num_valid=None)
        subject_of("reference", few).run(cpu := replace(call, **{n: getattr(call, n).cpu() for n in ("x", "out", "scale")}))
        assert same(args.out[:count].cpu(), cpu.out)
        assert same(args.scale[:blocks].cpu(), cpu.scale)


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize("name", EVERY)
def test_no_memory_past_the_valid_rows_is_accessed(name, on):
    subject = subject_of(on, EVERY[name])
    for count in (0, 6, ROWS):
        args = inputs.make_args(EVERY[name], 4, subject.device, inputs.DrawnLengths(valid=count))
        assert guarded.run(subject, args) == []


@pytest.mark.parametrize("on", PLACES[:2])
@pytest.mark.parametrize("count", [-1, ROWS + 1])
@pytest.mark.parametrize("name", EVERY)
def test_no_row_is_valid_if_the_count_is_out_of_range(name, count, on):
    d = EVERY[name]
    args = drawn(d, ROWS)
    args.num_valid.fill_(count)
    before = copied(args)
    subject_of(on, d).run(args)
    assert same(args.out, before.out)
    if d.op == "quantize" and d.quant.scale == "tensor":  # the scale of a tensor of zeros
        least = float(torch.tensor(d.quant.least) / d.quant.largest)
        assert least <= args.scale.float().item() <= (2.0 if d.quant.scale_dtype == "f8_e8m0" else 1 + 1e-6) * least
    else:
        assert same(args.scale, before.scale)


@pytest.mark.parametrize("on", PLACES[:2])
@pytest.mark.parametrize("name", ["tensor", "tensor_bf16", "block", "block_bf16"])
def test_rows_past_num_valid_do_not_enter_a_scale(name, on):
    """The second call has fewer valid rows, in a block and in total; its invalid rows are large."""
    d = FORMS[name]
    args = drawn(d, 11)
    few = copied(args)
    few.x[6:] = 3e4
    few.num_valid.fill_(6)
    subject = subject_of(on, d)
    subject.run(args), subject.run(few)
    top, scale = args.x[:6].float().abs(), few.scale.float()
    if d.quant.scale == "tensor":
        assert scale.item() == pytest.approx(top.max().item() / d.quant.largest, rel=1e-6)
    else:  # rows 4 and 5 are in the second row of blocks
        assert scale[1, 0].item() == pytest.approx(top[4:6, : d.quant.block[1]].max().item() / d.quant.largest, rel=1e-6)
        assert same(few.scale[0], args.scale[0])
        assert same(few.out[:4], args.out[:4])


@emulator.needed
@pytest.mark.parametrize("name", ["tensor_bf16", "tensor_i8", "tensor_powers"])
def test_one_cluster_and_three_launches_give_the_same_bits(name):
    d = changed(FORMS[name], num_valid=False)
    calls = [inputs.make_args(d, 5) for _ in range(2)]
    subjects = [emulator.subject(d), emulator.subject(d, forbid=("rows",))]
    assert [subject.plan.sku.impl for subject in subjects] == ["rows", "scaled"]
    for subject, args in zip(subjects, calls, strict=True):
        subject.run(args)
    assert same(calls[0].out, calls[1].out)
    assert same(calls[0].scale, calls[1].scale)


@emulator.needed
@pytest.mark.parametrize("name", ["block", "back_block", "tensor", "back_tensor"])
def test_the_bits_do_not_depend_on_strides(name):
    d = EVERY[name]
    args = drawn(d, 6)
    columns = replace(copied(args), x=args.x.t().contiguous().t(), out=args.out.t().contiguous().t())
    for call in (args, columns):
        emulator.subject(d).run(call)
    assert same(args.out, columns.out)
    assert same(args.scale, columns.scale)


def test_each_form_selects_its_kernel():
    for name, d in EVERY.items():
        sku = Plan.select(d, Preference(backend="cuda"), SM_90A).sku
        assert sku.impl == ("blocks" if "block" in name else "rows" if d.op == "dequantize" else "scaled")
        assert dict(sku.spec)["num_valid"] is True


def test_scales_of_invalid_blocks_are_not_validated(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    d = BACK["back_block"]
    args = drawn(d, 6)
    args.scale[2:] = torch.nan
    Plan.select(d, target=CPU).run(args)
    args.scale[1] = torch.nan
    with pytest.raises(ArgumentError, match="scale"):
        Plan.select(d, target=CPU).run(args)


@pytest.mark.parametrize("layout", ["row", "column", "column_padded4"])
def test_scales_of_invalid_rows_are_not_validated(monkeypatch, layout):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    d = made(DequantizeDescriptor, group=8, scale_layout=layout)
    args = drawn(d, 6)
    rows = args.scale if layout == "row" else args.scale.t()
    rows[:6], rows[6:] = 1.0, torch.nan
    Plan.select(d, target=CPU).run(args)
    assert not args.out[:6].isnan().any()
    rows[5, 2] = torch.nan
    place = "5, 2" if layout == "row" else "2, 5"
    with pytest.raises(ArgumentError, match=rf"scale\[{place}\] expected finite values"):
        Plan.select(d, target=CPU).run(args)


def test_padding_of_a_column_of_scales_is_not_validated(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    d = made(DequantizeDescriptor, num_valid=False, group=8, scale_layout="column_padded4")
    args = drawn(d, 0)
    args.scale[:, :ROWS], args.scale[:, ROWS:] = 1.0, torch.nan
    Plan.select(d, target=CPU).run(args)
    args.scale[1, ROWS - 1] = torch.nan
    with pytest.raises(ArgumentError, match=rf"scale\[1, {ROWS - 1}\] expected finite values"):
        Plan.select(d, target=CPU).run(args)


def test_one_sku_serves_any_number_of_rows():
    for kind, scale in ((QuantizeDescriptor, "tensor"), (QuantizeDescriptor, "block"), (DequantizeDescriptor, "block")):
        problems = (made(kind, rows=rows, hidden=7168, wide="bf16", scale=scale) for rows in (1, 7, 8192))
        assert len({Plan.select(d, Preference(backend="cuda"), SM_90A).sku.id for d in problems}) == 1


@pytest.mark.parametrize("kind", [QuantizeDescriptor, DequantizeDescriptor])
def test_each_kind_compiles_without_spills(kind):
    for wide in ("bf16", "f32"):
        builds_without_spills(made(kind, rows=200, hidden=7168, wide=wide, scale="block"))
        builds_without_spills(made(kind, rows=200, hidden=7168, wide=wide, scale="tensor"))


@pytest.mark.gpu
def test_a_replayed_graph_uses_the_current_count_on_a_gpu():
    for scale in ("tensor", "block"):
        d = made(rows=300, hidden=512, wide="bf16", scale=scale)
        plan, args = Plan.select(d, Preference(backend="cuda")), inputs.make_args(d, 3, "cuda")
        room = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda") if plan.workspace_size else None
        plan.run(args, room)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan.run(args, room)
        for count, factor in ((300, 1.0), (3, 1e-3), (200, 50.0)):
            args.num_valid.fill_(count)
            args.x.normal_().mul_(factor)
            graph.replay()
            assert numerics.check(d, args, plan.sku).worst <= 0
