"""Gated activations in the kernels of map: every layout keeps the error bound and gives the same bits."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.dtypes import torch_dtype
from opfacade.plans.activation import EXAMPLES, GatedActivationArgs, GatedActivationDescriptor, Quant
from opfacade.testing import inputs, numerics
from opfacade.testing.bits import fill, same_bits
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.elementwise.forms import laid_out

SM_90A = Target.parse("sm_90a")
FORMS = {
    "silu": {"activation": "silu"},
    "up_first": {"activation": "gelu_tanh", "gate_first": False},
    "pairs": {"activation": "swiglu_oai", "interleaved": True},
    "pairs_up_first": {"activation": "silu", "interleaved": True, "gate_first": False},
    "ungated": {"activation": "gelu", "gated": False},
    "limited": {"activation": "silu", "limit": 1.0, "alpha": 1.5},
    "quantised": {"activation": "silu", "quant": Quant(scale="static")},
    "quantised_pairs": {"activation": "swiglu_oai", "interleaved": True, "quant": Quant(dtype="i8", scale="static")},
    "cast": {"activation": "gelu", "gated": False, "quant": Quant(dtype="f8_e5m2", scale="none")},
}
DTYPES = ("bf16", "f16", "f32")


def problem(rows, width, **fields):
    return GatedActivationDescriptor(total_num_rows=rows, width=width, **{"dtype": "bf16"} | fields)


def drawn(descriptor, seed):
    """x spans several orders of magnitude and contains infinities and NaN; out is filled with NaN."""
    rows, width = descriptor.total_num_rows, len(descriptor.parts) * descriptor.width
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=draw) * torch.exp(2 * torch.randn(rows, width, generator=draw))
    x.view(-1)[::37] = math.inf
    x.view(-1)[5::41] = -math.inf
    x.view(-1)[7::43] = math.nan
    out = fill(torch.empty(rows, descriptor.width, dtype=torch_dtype(descriptor.out_dtype)), math.nan)
    scale = torch.tensor([0.37]) if descriptor.has_scale else None
    return GatedActivationArgs(x=x.to(torch_dtype(descriptor.dtype)), scale=scale, out=out)


def held(subject, args):
    before = numerics.snapshot(subject.descriptor, args)
    subject.run(args)
    report = numerics.check(subject.descriptor, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report
    return args.x[:, : subject.descriptor.width] if subject.descriptor.in_place else args.out


LAYOUTS = {
    "compact": lambda x: x,
    "padded": lambda x: torch.cat([x, x[:, :6]], 1)[:, : x.shape[1]],
    "transposed": lambda x: laid_out(x, "transposed"),
    "stepped": lambda x: laid_out(x, "stepped"),
    "shifted": lambda x: laid_out(x, "shifted"),
}


def layouts(descriptor):
    """Interleaved pairs must be adjacent and aligned, so only two layouts remain."""
    return ("compact", "padded") if descriptor.interleaved else LAYOUTS


@emulator.needed
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_it_keeps_its_bound_on_every_layout(form, dtype):
    descriptor = problem(9, 70, dtype=dtype, **FORMS[form])
    subject, args = emulator.subject(descriptor), drawn(descriptor, 3)
    for name in layouts(descriptor):
        for out in ("compact", "transposed"):
            held(subject, replace(args, x=LAYOUTS[name](args.x), out=LAYOUTS[out](args.out.clone())))


@emulator.needed
@pytest.mark.parametrize("form", FORMS)
def test_bits_do_not_depend_on_the_layout_or_the_batch(form):
    descriptor = problem(17, 130, **FORMS[form])
    subject, args = emulator.subject(descriptor), drawn(descriptor, 4)
    want = held(subject, args).clone()
    for name in layouts(descriptor):
        again = replace(args, x=LAYOUTS[name](args.x), out=torch.zeros_like(args.out))
        assert not bool(differs(held(subject, again), want).any())
    alone = emulator.subject(problem(1, 130, **FORMS[form]))
    for row in (0, 7, 16):
        one = replace(args, x=args.x[row : row + 1], out=torch.zeros_like(args.out[:1]))
        assert not bool(differs(held(alone, one), want[row : row + 1]).any())


@emulator.needed
@pytest.mark.parametrize("width", [1, 7, 8, 9, 63, 352, 3420 // 4])
@pytest.mark.parametrize("form", ["silu", "pairs", "ungated"])
def test_an_odd_width_is_computed_without_a_write_past_the_row(form, width):
    descriptor = problem(3, width, **FORMS[form])
    subject, args = emulator.subject(descriptor), drawn(descriptor, width)
    wide = torch.full((3, width + 5), 7.0, dtype=torch.bfloat16)
    held(subject, GatedActivationArgs(x=args.x, out=wide[:, 2 : 2 + width]))
    assert bool((wide[:, :2] == 7).all())
    assert bool((wide[:, 2 + width :] == 7).all())


@emulator.needed
@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("layout", ["compact", "padded", "transposed"])
def test_in_place_and_out_of_place_give_the_same_bits(layout, gate_first):
    form = {"activation": "gelu", "gate_first": gate_first}
    plain, over = problem(9, 66, **form), problem(9, 66, in_place=True, **form)
    args = drawn(plain, 5)
    want = held(emulator.subject(plain), args)
    x = LAYOUTS[layout](args.x.clone())
    assert same_bits(held(emulator.subject(over), GatedActivationArgs(x=x)), want)
    assert same_bits(x[:, 66:].contiguous(), args.x[:, 66:].contiguous())


@emulator.needed
@pytest.mark.parametrize("count", [0, 4, 9, -1, 10])
def test_rows_past_the_valid_ones_are_not_touched(count):
    descriptor = problem(9, 24, num_valid=True)
    args = drawn(descriptor, 6)
    args.out.fill_(3.0)
    args = GatedActivationArgs(x=args.x, out=args.out, num_valid=torch.tensor([count], dtype=torch.int32))
    emulator.subject(descriptor).run(args)
    rows = count if 0 <= count <= 9 else 0
    assert bool((args.out[rows:] == 3).all())
    assert rows == 0 or not bool((args.out[:rows] == 3).all())


def test_the_sku_depends_on_compiled_constants_and_on_no_size():
    plans = [Plan.select(problem(rows, width), Preference(backend="cuda"), SM_90A) for rows, width in ((3, 8), (5, 99))]
    assert plans[0].sku.id == plans[1].sku.id
    assert plans[0].jit_spec == plans[1].jit_spec
    assert plans[0].sku.precision_guarantee.batch_invariant == "composition"
    first, other = (Plan.select(problem(3, 8, limit=x), Preference(backend="cuda"), SM_90A) for x in (1.0, 2.0))
    assert first.sku.id == other.sku.id
    assert first.jit_spec == other.jit_spec
    assert first.sku.id != plans[0].sku.id


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.activation}-{e.total_num_rows}")
def test_examples_compile_without_spills(example):
    """compile() raises if ptxas reports spills."""
    plan = Plan.select(example, Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_large_rows_keep_the_error_bound_on_a_gpu(form, dtype):
    for rows, width in ((1, 14336), (257, 3420), (64, 352)):
        descriptor = problem(rows, width, dtype=dtype, **FORMS[form])
        plan = Plan.select(descriptor, Preference(backend="cuda"))
        args = inputs.make_args(descriptor, seed=2, device="cuda")
        plan.run(args)
        assert numerics.check(descriptor, args, plan.sku).worst <= 1
