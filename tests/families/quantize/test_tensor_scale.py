"""Norms and gated activations with one scale for all rows have the bits of the op without quant, followed by `quantize`.

In the emulator on a CPU; on a GPU the same problems and larger ones.
"""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.errors import ArgumentError, UnsupportedDeviceError, UnsupportedError
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.quantize import Quant, QuantizeArgs, QuantizeDescriptor
from opfacade.programs.activations import silu
from opfacade.programs.expression import value
from opfacade.testing import inputs, numerics
from opfacade.testing.batches import changed
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.reduction.held import builds_without_spills, on_gpu

SM_90A = Target.parse("sm_90a")
POWERS = {"scale_dtype": "f8_e8m0"}
LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0}


def norm(dtype, hidden=96, quant=None, **fields):
    fields = {"kind": "rms", "total_num_rows": 5} | fields
    return NormDescriptor(hidden=hidden, dtype=dtype, quant=Quant(scale="tensor", **(quant or {})), **fields)


def gated(dtype, width=72, quant=None, **fields):
    fields = {"total_num_rows": 5} | fields
    return GatedActivationDescriptor(width=width, dtype=dtype, quant=Quant(scale="tensor", **(quant or {})), **fields)


F32 = {
    "rms": norm("f32"),
    "rms_residual": norm("f32", residual=True, full_out=True, num_valid=True),
    "rms_one_plus": norm("f32", 101, {"dtype": "f8_e5m2"}, weight="one_plus", weight_dtype="bf16"),
    "layer_groups": norm("f32", 128, {"dtype": "i8"}, kind="layer", groups=4, bias=True, gate="silu", num_valid=True),
    "layer_powers": norm("f32", 640, POWERS, kind="layer", bias=True, residual=True),
    "rms_long": norm("f32", 6001, total_num_rows=2),
    "rms_1024": norm("f32", 1024, residual=True, num_valid=True),
    "rms_cluster": norm("f32", 24000, total_num_rows=2, weight="none"),
    "silu": gated("f32"),
    "swiglu_pairs": gated("f32", 65, {"dtype": "i8"}, activation="swiglu_oai", interleaved=True, num_valid=True),
    "gelu_up_first": gated("f32", 33, POWERS, activation="gelu", gate_first=False),
    "relu2": gated("f32", 1100, activation="relu2", gated=False),
    "limit": gated("f32", 40, {"dtype": "f8_e5m2"}, limit=1.5, alpha=0.7),
    "expression": gated("f32", 40, expression=silu(value("gate", "f32")) - value("up", "f32")),
}
SHORT = {
    "rms_bf16": norm("bf16", residual=True, full_out=True, num_valid=True),
    "rms_rounded": norm("bf16", 1024, residual=True, residual_sum="rounded", normed="rounded", full_out=True),
    "layer_f16": norm("f16", 257, {"dtype": "i8"}, kind="layer", bias=True, gate="sigmoid", full_out=True),
    "heads_bf16": norm("bf16", 256, POWERS, groups=4, full_out=True, num_valid=True),
    "silu_bf16": gated("bf16", num_valid=True),
    "gelu_tanh_f16": gated("f16", 195, {"dtype": "i8"}, activation="gelu_tanh"),
    "pairs_bf16": gated("bf16", 96, POWERS, activation="swiglu_oai", interleaved=True),
}


def width_of(d):
    return d.hidden if d.op == "norm" else d.width


def unquantised(d):
    return changed(d, quant=None, **({"full_out": False} if d.op == "norm" else {}))


def drawn(d, valid=4):
    return inputs.make_args(d, 3, lengths=inputs.DrawnLengths(valid=valid) if d.num_valid else None)


def copied(args):
    return replace(args, **{n: t.clone() for n in args.__slots__ if isinstance(t := getattr(args, n), torch.Tensor)})


def rows_of(d, args):
    return d.total_num_rows if args.num_valid is None else int(args.num_valid[0])


def plain_result(d, args, run):
    """The result of the op without quant, in its dtype, with the residual sum."""
    shape = (d.total_num_rows, width_of(d))
    out = torch.full(shape, float("nan")).to(args.x.dtype).to(args.x.device)
    call = replace(copied(args), out=out, scale=None, **({"full_out": None} if d.op == "norm" else {}))
    run(unquantised(d), call)
    return call


def same(one, other):
    return not bool(differs(one.contiguous(), other.contiguous()).any())


def composed(d, args, run):
    """The output and scale of the op without quant followed by quantize, with the residual sum of the op."""
    plain = plain_result(d, args, run)
    rows, device = rows_of(d, args), args.x.device
    call = QuantizeArgs(x=plain.out[:rows], out=torch.empty_like(args.out[:rows]), scale=torch.empty_like(args.scale))
    run(QuantizeDescriptor(total_num_rows=rows, hidden=width_of(d), dtype="f32", quant=d.quant), call)
    assert device == call.out.device
    return call.out, call.scale, getattr(plain, "residual", None)


def emulated(d, args):
    emulator.subject(d).run(args)


def cuda(d, args):
    Plan.select(d, Preference(backend="cuda")).run(args)


def is_composed(d, args, run):
    out, scale, residual = composed(d, args, run)
    before = copied(args)
    run(d, args)
    rows = rows_of(d, args)
    assert same(args.scale, scale)
    assert same(args.out[:rows], out)
    assert same(args.out[rows:], before.out[rows:])
    if residual is not None:
        assert same(args.residual, residual)


@emulator.needed
@pytest.mark.parametrize("name", F32)
def test_it_is_the_op_without_quant_then_quantize(name):
    is_composed(F32[name], drawn(F32[name]), emulated)


@pytest.mark.parametrize("hidden", [1024, 2048, 16384])
@pytest.mark.parametrize("weight_dtype", ["bf16", "f32"])
def test_lanes_share_a_row_as_in_the_op_without_quant(hidden, weight_dtype):
    """The stage that computes the maximum reads the weight, which the op without quant reads only for its outputs."""
    d = norm("bf16", hidden, weight_dtype=weight_dtype)
    scaled, plain = (dict(Plan.select(one, Preference(backend="cuda"), target=SM_90A).sku.spec) for one in (d, unquantised(d)))
    assert all(scaled[name] == plain[name] for name in ("span", "pieces", "vector", "waves"))


@emulator.needed
@pytest.mark.parametrize("name", SHORT)
def test_16_bit_results_are_not_rounded_before_the_division(name):
    """The test compares with the op that takes this scale as an operand, because no other op returns the unrounded result."""
    d = SHORT[name]
    args = drawn(d)
    static = changed(d, quant=d.quant.model_dump() | {"scale": "static"})
    plain = plain_result(d, args, emulated)
    other = copied(args)
    emulated(d, args)
    emulated(static, replace(other, scale=args.scale.clone()))
    rows = rows_of(d, args)
    assert same(args.out[:rows], other.out[:rows])
    most = plain.out[:rows].double().abs().max()
    if d.op == "norm":
        assert same(args.full_out[:rows], plain.out[:rows])
        assert not d.residual or same(args.residual, plain.residual)
    found = args.scale.double()[0] * LARGEST[d.quant.dtype]
    if d.quant.scale_dtype == "f32":
        assert (found.float() / most - 1).abs() < 2.0**-8
        assert int((args.out[:rows].double().abs() == LARGEST[d.quant.dtype]).sum()) >= 1
    else:
        assert most <= found * (1 + 2.0**-8)
        assert found < 2 * most * (1 + 2.0**-8)


def apart(tensor):
    """A copy whose row stride is larger than the row length."""
    if tensor.ndim != 2:
        return tensor.clone()
    wide = torch.empty(tensor.shape[0], tensor.shape[1] + 24, dtype=tensor.dtype)
    return wide[:, 8 : 8 + tensor.shape[1]].copy_(tensor)


def transposed(tensor):
    return tensor.t().contiguous().t() if tensor.ndim == 2 else tensor.clone()


@emulator.needed
@pytest.mark.parametrize("name", ["rms_residual", "layer_groups", "swiglu_pairs", "rms_bf16", "silu_bf16"])
def test_it_keeps_its_bound_and_strides_do_not_matter(name):
    d = (F32 | SHORT)[name]
    subject, args = emulator.subject(d), drawn(d)
    names = [one for one in operands_of(d) if one != "num_valid"]
    layouts = [apart] + ([] if getattr(d, "interleaved", False) else [transposed])
    others = [replace(args, **{one: layout(getattr(args, one)) for one in names}) for layout in layouts]
    for call in (args, *others):
        before = numerics.snapshot(d, call)
        subject.run(call)
        assert numerics.check(d, call, subject.plan.sku, before=before).worst <= 1
    assert all(same(getattr(args, one), getattr(other, one)) for one in names for other in others)


@emulator.needed
@pytest.mark.parametrize("name", ["rms_residual", "silu_bf16"])
def test_a_call_computes_its_own_scale_for_any_workspace_content(name):
    """The second call has smaller values. Large values are in its rows past num_valid and, from the first call, in the
    workspace."""
    d = (F32 | SHORT)[name]
    subject, first = emulator.subject(d), drawn(d, valid=5)
    room = torch.zeros(subject.plan.workspace_size, dtype=torch.uint8)
    second = copied(first)
    first.x[4] = 100.0
    if d.op == "norm":
        first.x[4, 1:], first.residual[4], first.weight[0] = 0.0, 0.0, 4.0
    subject.run(first, room)
    second.num_valid.fill_(3)
    for tensor in (second.x, second.residual if d.op == "norm" else second.x):
        tensor[3:] = 3e4
    want = composed(d, second, emulated) if d.dtype == "f32" else None
    alone = copied(second)
    subject.run(second, room)
    subject.run(alone, torch.full_like(room, 255))
    assert same(second.scale, alone.scale)
    assert same(second.out, alone.out)
    assert want is None or same(second.scale, want[1])
    assert bool(second.scale < first.scale)


@emulator.needed
@pytest.mark.parametrize("d", [norm("f32", num_valid=True, residual=True), gated("bf16", num_valid=True)])
@pytest.mark.parametrize("count", [0, -1, 6])
def test_without_valid_rows_the_scale_is_that_of_zeros(d, count):
    args = drawn(d)
    args.num_valid.fill_(count)
    before = copied(args)
    reference = copied(args)
    emulated(d, args)
    Plan.select(d, target=Target.cpu()).run(reference)
    for got in (args, reference):
        assert got.scale.item() == pytest.approx(1e-10 / 448, rel=1e-6)
        assert same(got.out, before.out)
        assert d.op != "norm" or same(got.residual, before.residual)


@emulator.needed
def test_the_maximum_may_be_in_any_row():
    """There are more rows than threads in the CTA that computes the scale."""
    d = gated("f32", 8, total_num_rows=1100, activation="identity")
    for row in (0, 511, 512, 1099):
        args = drawn(d)
        args.x.fill_(1)
        args.x[row] = 3
        emulated(d, args)
        assert args.scale.item() == pytest.approx(9 / 448, rel=1e-6)
        assert args.out[row].float().tolist() == [448.0] * 8


@emulator.needed
@pytest.mark.parametrize("dtype", ["f8_e4m3", "i8"])
def test_nan_makes_all_elements_nan_and_an_infinity_makes_them_zero(dtype):
    d = gated("f32", 40, {"dtype": dtype}, activation="identity")
    for odd, scale in ((float("nan"), float("nan")), (float("inf"), float("inf"))):
        args = drawn(d)
        args.x.clamp_(0.5, 2)
        args.x[2, 3] = odd
        want = composed(d, args, emulated)
        emulated(d, args)
        assert same(args.scale, torch.tensor([scale]))
        assert same(args.out, want[0])
        assert same(args.scale, want[1])
        if odd == float("inf"):
            assert int((args.out.float() == 0).sum()) == args.out.numel() - 1 + (dtype == "i8")


def test_maxima_of_rows_and_groups_are_in_a_workspace_of_known_size():
    for d, rows in ((norm("bf16", 4096, total_num_rows=8192), 8192), (norm("bf16", 4096, total_num_rows=100, groups=32), 3200)):
        plan = Plan.select(d, Preference(backend="cuda"), SM_90A)
        assert plan.workspace_size == -(-4 * rows // 256) * 256
        assert plan.sku.precision_guarantee.batch_invariant == "none"
        assert plan.sku.precision_guarantee.deterministic
    with pytest.raises(UnsupportedError, match="OPF-S014"):
        Plan.select(norm("bf16"), Preference(backend="cuda", max_workspace_bytes=0), SM_90A)


def test_one_sku_serves_any_number_of_rows():
    for make in (lambda rows: norm("bf16", 7168, total_num_rows=rows), lambda rows: gated("bf16", 2048, total_num_rows=rows)):
        assert len({Plan.select(make(rows), Preference(backend="cuda"), SM_90A).sku.id for rows in (1, 7, 8192)}) == 1


def test_least_and_the_dtype_of_scales_are_in_the_sku_id():
    quants = ({}, {"least": 1e-5}, POWERS, {"dtype": "f8_e5m2"})
    ids = {Plan.select(norm("bf16", quant=quant), Preference(backend="cuda"), SM_90A).sku.id for quant in quants}
    assert len(ids) == len(quants)


@pytest.mark.parametrize("d", [norm("bf16"), gated("bf16")])
def test_a_scale_tensor_with_one_entry_per_row_is_refused(d):
    args = drawn(d)
    for wrong in (torch.empty(5), torch.empty(1, 1), torch.empty(1, dtype=torch.float64)):
        with pytest.raises(ArgumentError, match="scale"):
            Plan.select(d, target=Target.cpu()).run(replace(args, scale=wrong))


def test_devices_before_sm_89_support_i8_and_not_f8():
    assert (
        Plan.select(norm("bf16", quant={"dtype": "i8"}), Preference(backend="cuda"), Target.parse("sm_80")).sku.impl == "scaled"
    )
    with pytest.raises(UnsupportedError, match="sm_89 and later"):
        Plan.select(norm("bf16"), Preference(backend="cuda"), Target.parse("sm_80"))
    for scale in ("none", "static", "token", "group", "tensor"):
        d = QuantizeDescriptor(total_num_rows=5, hidden=63, dtype="bf16", quant=Quant(scale=scale, group=63), num_valid=True)
        with pytest.raises(UnsupportedDeviceError, match="sm_89 and later"):
            Plan.select(d, Preference(backend="cuda"), Target.parse("sm_80"))


@pytest.mark.parametrize(
    "d",
    [
        norm("bf16", 7168, residual=True),
        norm("bf16", 2880, residual=True, full_out=True, num_valid=True),
        norm("bf16", 4096, {"dtype": "i8"}, kind="layer", bias=True, groups=32),
        norm("f32", 16384, residual=True),
        gated("bf16", 14336),
        gated("bf16", 2880, activation="swiglu_oai", interleaved=True),
        gated("f32", 4096, activation="gelu"),
    ],
)
def test_common_widths_compile_without_spills(d):
    builds_without_spills(d)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*F32, *SHORT])
def test_each_form_keeps_its_bound_on_a_gpu(name):
    d = (F32 | SHORT)[name]
    on_gpu(d, drawn(d))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "d",
    [
        norm("f32", 4096, total_num_rows=1025, residual=True),
        norm("f32", 4096, {"dtype": "i8"}, total_num_rows=515, kind="layer", groups=32, bias=True),
        norm("f32", 65536, total_num_rows=3),
        gated("f32", 14336, total_num_rows=67),
        gated("f32", 300, POWERS, total_num_rows=20001, interleaved=True, activation="swiglu_oai"),
    ],
)
def test_large_problems_equal_the_two_ops_on_a_gpu(d):
    args = inputs.make_args(d, 3, "cuda")
    is_composed(d, args, cuda)


@pytest.mark.gpu
def test_a_replayed_graph_uses_the_current_count_and_values_on_a_gpu():
    d = norm("f32", 1024, total_num_rows=64, residual=True, num_valid=True)
    plan, args = Plan.select(d, Preference(backend="cuda")), inputs.make_args(d, 3, "cuda")
    room = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, room)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args, room)
    for count, factor in ((64, 1.0), (3, 1e-3), (40, 50.0)):
        args.num_valid.fill_(count)
        args.residual.normal_(), args.x.normal_().mul_(factor)
        out, scale, residual = composed(d, args, cuda)
        graph.replay()
        assert same(args.scale, scale)
        assert same(args.out[:count], out)
        assert same(args.residual, residual)
