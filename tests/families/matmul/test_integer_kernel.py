"""Products of i8 on an emulated device: sums are exact, scales of rows and columns follow, edges and copies."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul_tiles import Sizes, Tile, tile_of
from opfacade.core.descriptor import forget_specializations
from opfacade.errors import UnsupportedError
from opfacade.plans.matmul import MatmulDescriptor, Scaling
from opfacade.testing import inputs, numerics
from tests import emulator

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def made(rows=70, n=72, k=200, scaling=None, **more):
    scales = Scaling(**scaling) if scaling is not None else None
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="i8", scaling=scales, **more)


TOKENS = {"kind": "token"}
RANGES = {"kind": "token", "weight_kind": "tensor", "weight_starts": (3,)}
FORMS = {
    "bits": made(rows=9, n=35, k=131),
    "tokens": made(scaling=TOKENS, bias=True, add=True),
    "ranges": made(rows=5, n=90, k=64, scaling=RANGES, out_dtype="f32"),
    "gated": made(rows=3, n=20, k=96, scaling=TOKENS, gated=True, activation="silu", num_valid=True),
    "nothing": made(rows=3, n=9, k=0),
}


def checked(problem, args):
    subject = emulator.subject(problem)
    assert subject.plan.sku.impl == "wgmma_tile"
    assert subject.plan.sku.precision_guarantee.error_model.id == "matmul-s32"
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
@pytest.mark.parametrize("rows", [1, 70])
def test_sums_are_exact(rows):
    """So are those of the largest numbers, for any number of rows, and where threads copy rows off 16 bytes."""
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
