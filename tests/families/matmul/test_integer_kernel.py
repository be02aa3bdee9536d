"""Products of i8 on an emulated device: exact sums, scales of rows and columns, edges and copies."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul.tiles import Sizes, Tile, tile_of
from opfacade.core.descriptor import forget_specializations
from opfacade.errors import DescriptorError, UnsupportedError
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor, Scaling
from opfacade.plans.quantize import Quant, QuantizeArgs, QuantizeDescriptor
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul.held import held

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def made(rows=70, n=72, k=200, scaling=None, **more):
    scales = Scaling(**scaling) if scaling is not None else None
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="i8", scaling=scales, **more)


TOKENS = {"kind": "token"}
ZEROS = {"kind": "token", "x_zero": True}
RANGES = {"kind": "token", "weight_kind": "tensor", "weight_starts": (3,)}
FORMS = {
    "bits": made(rows=9, n=35, k=131),
    "tokens": made(scaling=TOKENS, bias=True, add=True),
    "ranges": made(rows=5, n=90, k=64, scaling=RANGES, out_dtype="f32"),
    "gated": made(rows=3, n=20, k=96, scaling=TOKENS, gated=True, activation="silu", num_valid=True),
    "zeros": made(rows=5, n=35, scaling=ZEROS, bias=True, add=True, num_valid=True),
    "gated zeros of batches": made(rows=3, n=20, k=96, batch=2, scaling={"kind": "tensor", "x_zero": True}, gated=True),
    "nothing": made(rows=3, n=9, k=0),
}


def checked(problem, args):
    held(problem, args, model="matmul-s32")


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


@emulator.needed
@pytest.mark.parametrize("rows", [1, 70])
def test_sums_are_exact(rows):
    """The same holds for the largest numbers, any number of rows, and rows that threads copy because they are not aligned to 16
    bytes.
    """
    problem = made(rows=rows, n=40, k=272)
    args = inputs.make_args(problem, 1)
    args.x[0], args.weight[3] = -128, -128
    want = (args.x.double() @ args.weight.double().T).to(torch.int32)
    for x in (args.x, torch.zeros(rows, problem.k + 1, dtype=torch.int8)[:, 1:].copy_(args.x)):
        call = replace(args, x=x, out=torch.zeros_like(args.out))
        emulator.subject(problem).run(call)
        assert torch.equal(call.out, want)
    assert int(want[0, 3]) == 128 * 128 * 272


@emulator.needed
def test_sums_behind_a_zero_point_are_exact():
    """(x - zero) @ weight in integers, up to the edge of i32: neither part of the difference is rounded before it."""
    problem = made(rows=4, n=35, k=65_793, scaling=ZEROS, out_dtype="f32")
    args = inputs.make_args(problem, 2)
    args.x[1:].clamp_(min=63), args.weight[1:].clamp_(min=63)  # sums far beyond 2^24, most of them odd
    args.x[0], args.weight[0], args.x_zero[0], args.x_zero[1:] = 127, -128, -128, -127
    args.x_scale.fill_(1), args.weight_scale.fill_(1), args.weight_sum.copy_(args.weight.sum(1))
    shifted = args.x.long() - args.x_zero.long().unsqueeze(-1)
    want = (shifted.double() @ args.weight.double().T).long()
    emulator.subject(problem).run(args)
    assert torch.equal(args.out, want.float())
    assert int(want[0, 0]) == -255 * 128 * problem.k


def test_a_product_of_what_was_quantised_with_zero_points_is_that_of_the_numbers():
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.rand((7, 64), generator=draw) * 3 - 0.5, torch.randint(-127, 128, (9, 64), generator=draw).to(torch.int8)
    problem = made(rows=7, n=9, k=64, scaling=ZEROS, out_dtype="f32")
    args, own = inputs.make_args(problem, 1), Quant(dtype="i8", scale="token", zero=True)
    quantised = QuantizeDescriptor(total_num_rows=7, hidden=64, dtype="f32", quant=own)
    Plan.select(quantised).run(QuantizeArgs(x=x, out=args.x, scale=args.x_scale, zero=args.x_zero))
    args.weight.copy_(weight), args.weight_sum.copy_(weight.sum(1))
    Plan.select(problem, Preference(backend="reference")).run(args)
    want = x.double() @ (weight.double() * args.weight_scale.double()[:, None]).T
    step = 0.51 * args.x_scale.double()[:, None] * (weight.double() * args.weight_scale.double()[:, None]).abs().sum(1)
    assert bool(((args.out - want).abs() <= step).all())
    assert bool(((args.out - want).abs() < 0.2 * step).any())


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"dtype": "f8_e4m3"}, "only i8 has zero points"), ({"dtype": "i8", "k": 65_794}, "at most 65793 with zero points")],
)
def test_zero_points_that_have_no_sums_are_refused(fields, word):
    with pytest.raises(DescriptorError, match=word):
        MatmulDescriptor(**{"total_num_rows": 3, "n": 4, "k": 5, "scaling": Scaling(kind="token", x_zero=True)} | fields)


def test_groups_have_no_zero_points_and_older_texts_hold():
    with pytest.raises(DescriptorError, match="grouped products do not support zero points"):
        GroupedMatmulDescriptor(
            groups=2, total_num_rows=3, n=4, k=5, dtype="i8", scaling=Scaling(kind="token", x_zero=True), out_dtype="f16"
        )
    assert "x_zero" not in Scaling(kind="token").canonical_json()


@emulator.needed
def test_a_tile_of_two_warpgroups_has_the_same_sums():
    problem = made(rows=140, n=200, k=304)
    args = inputs.make_args(problem, 2)
    forget_specializations()
    with patch.object(backend, "tile_of", lambda sizes, sms: Tile(128, 128, 1, 2)):
        emulator.subject(problem).run(args)
    forget_specializations()
    assert torch.equal(args.out, (args.x.double() @ args.weight.double().T).to(torch.int32))


def test_integers_have_whole_tiles():
    """Their sums take the registers of one."""
    assert tile_of(Sizes(4096, 4096, 4096, 1, 32, 1), 132).columns == 256


@pytest.mark.parametrize(("field", "fields"), [("weight_layout", {"weight_layout": "kn"}), ("x_layout", {"x_layout": "km"})])
def test_what_tensor_cores_cannot_do_is_declined_by_name(field, fields):
    with pytest.raises(UnsupportedError, match=field):
        Plan.select(made(**fields), Preference(backend="cuda"), SM_90A)


def test_it_compiles_without_spills():
    forget_specializations()
    with patch.object(backend, "tile_of", lambda sizes, sms: Tile(128, 256, 1, 2)):
        plan = Plan.select(made(rows=4096, scaling=TOKENS), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"
    forget_specializations()
