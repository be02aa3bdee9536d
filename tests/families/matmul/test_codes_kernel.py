"""The kernel of products with codes of four bits on an emulated device: numbers of codes, groups, zero points and edges."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul_codes import Shape
from opfacade.backends.cuda.matmul_tiles import Tile
from opfacade.core.descriptor import forget_specializations
from opfacade.errors import UnsupportedError
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs, numerics
from tests import emulator

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def made(rows=5, n=40, k=224, weight=None, dtype="bf16", **more):
    given = {"dtype": "uint4", "group": 64, "scale_dtype": "bf16", "dequantise": "rounded"} | (weight or {})
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, weight_format=Weight(**given), **more)


HALF = {"scale_dtype": "f16"}
FORMS = {
    "zeros": made(weight={"zero": "int", "group": 128, "group_offset": 96}, bias=True, activation="silu"),
    "f16": made(rows=70, weight=HALF | {"zero": "float"}, dtype="f16", out_dtype="f32", add=True),
    "added": made(weight={"zero": "added", "group": None, "scale_dtype": "f32"}, num_valid=True),
    "edges": made(n=33, k=77, weight={"zero": "int", "group": 32}, out_dtype="f32"),
    "gated": made(n=24, k=90, gated=True, weight={"dtype": "int4"}, batch=2),
    "one-chain": made(rows=2, n=33, k=2080),
    "nothing": made(rows=3, n=9, k=0, bias=True, weight={"group": None}),
}


def tiled(tile):
    """All products have this tile."""
    forget_specializations()
    return patch.object(backend.matmul_codes, "shape_of", lambda sizes, sms: Shape(tile, None))


def checked(problem, args):
    subject = emulator.subject(problem)
    assert subject.plan.sku.impl == "wgmma_tile"
    before = numerics.snapshot(problem, args)
    subject.run(args)
    report = numerics.check(problem, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


@emulator.needed
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_columns_are_the_numbers_that_codes_stand_for(dtype):
    """x is a unit matrix, so that each number arrives alone: (code - zero) * scale of small integers is exact."""
    k, n = 160, 40
    problem = made(rows=k, n=n, k=k, weight={"dtype": dtype, "zero": "none" if dtype == "int4" else "int", "group": 32})
    args = inputs.make_args(problem, 1)
    codes = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(1))
    numbers = torch.where(codes > 7, codes - 16, codes) if dtype == "int4" else codes
    scale = torch.arange(n * 5).reshape(n, 5) % 7 + 1
    args.x.copy_(torch.eye(k)), args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2]), args.weight_scale.copy_(scale)
    zero = torch.zeros(n, 5)
    if dtype == "uint4":
        zero = torch.arange(n * 5).reshape(n, 5) % 16
        args.weight_zero.copy_(zero)
    emulator.subject(problem).run(args)
    want = (numbers - zero.repeat_interleave(32, 1)) * scale.repeat_interleave(32, 1)
    assert torch.equal(args.out.double(), want.double().T)


@emulator.needed
def test_a_row_has_its_bits_in_any_batch():
    """Alone, among others, in each tile, and where codes or rows lie off sixteen bytes."""
    most = made(rows=140, n=72, k=392, weight={"zero": "int"}, out_dtype="f32")
    args, found = inputs.make_args(most, 5), []
    off = torch.empty(72, 200, dtype=torch.uint8)[:, 3:199].copy_(args.weight)
    rows_off = torch.empty(140, 395, dtype=args.x.dtype)[:, 2:394].copy_(args.x)
    calls = [(Tile(64, 32, 2), 140, {}), (Tile(64, 32, 2), 1, {}), (Tile(64, 32, 2), 9, {"weight": off, "x": rows_off[:9]})]
    for tile, rows, other in (*calls, (Tile(128, 128, 1), 140, {})):
        part = most.model_copy(update={"total_num_rows": rows}).revalidated()
        with tiled(tile):
            call = replace(args, **({"x": args.x[:rows]} | other), out=torch.full((rows, 72), float("nan")))
            checked(part, call)
            found.append(call.out)
    forget_specializations()
    assert all(torch.equal(one, found[0][: len(one)]) for one in found)


@emulator.needed
def test_a_scale_past_the_end_of_k_or_n_makes_no_number():
    """Elements behind k count as zeros, whatever the scale of their group is."""
    problem = made(rows=2, n=33, k=40, weight={"group": 32}, out_dtype="f32")
    args = inputs.make_args(problem, 2)
    args.weight_scale[3, 1] = float("inf")
    args.x.fill_(1), args.weight.fill_(0x11)
    emulator.subject(problem).run(args)
    assert torch.equal(args.out.isfinite().all(0), torch.arange(33) != 3)
    assert bool((args.out[:, 3] == float("inf")).all())  # nought times infinity would be NaN


@emulator.needed
def test_a_cta_has_many_tiles_of_an_odd_number_of_steps():
    """One SM: stages go round over tiles, three steps each."""
    problem = made(rows=130, n=100, k=330, sm_limit=1, weight={"group": None})
    with tiled(Tile(64, 32, 2)):
        checked(problem, inputs.make_args(problem, 4))
    forget_specializations()


DECLINED = {
    "dequantise": {"dequantise": "exact"},
    "num_groups": {"num_groups": 3, "group": None},
    "group": {"group": 16},
    "weight_format.dtype": {"dtype": "e2m1"},
    "group_offset": {"group_offset": 8},
}


@pytest.mark.parametrize("field", DECLINED)
def test_other_formats_are_declined_by_name(field):
    with pytest.raises(UnsupportedError, match=field):
        Plan.select(made(weight=DECLINED[field]), Preference(backend="cuda"), SM_90A)


def test_the_largest_tile_compiles():
    with tiled(Tile(128, 256, 1)):
        plan = Plan.select(made(rows=4096, weight={"zero": "int"}), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"
    forget_specializations()
