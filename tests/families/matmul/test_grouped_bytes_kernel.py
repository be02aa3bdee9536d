"""Grouped products of 8-bit operands on an emulated device: scales of rows in any position, and the bits of single products."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import grouped as backend
from opfacade.backends.cuda.matmul.tiles import Tile
from opfacade.core.descriptor import forget_specializations
from opfacade.errors import UnsupportedError
from opfacade.plans.matmul import EXAMPLES, GroupedMatmulDescriptor, Scaling
from opfacade.select.explanation import explain
from opfacade.testing import determinism, inputs, numerics
from opfacade.testing.batches import changed
from opfacade.testing.families._matmul_grouped import part_of, places_of, product_of
from tests import emulator
from tests.families.matmul import test_grouped_kernel as halves

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def made(dtype="f8_e4m3", scaling=None, **more):
    scales = Scaling(**scaling) if scaling is not None else None
    return halves.made(dtype=dtype, scaling=scales, **more)


BLOCK, TOKEN = {"kind": "block"}, {"kind": "token"}
PADDED = BLOCK | {"x_scale_layout": "column_padded4"}
GATHER = {"gather": True, "num_x_rows": 11, "rows": 40}
MASKED = {"layout": "masked", "rows": 9}
FORMS = {
    "fp8": made(out_dtype="f32"),
    "fp8 tensor": made("f8_e5m2", {"kind": "tensor", "weight_starts": (3, 40)}, rows=20),
    "fp8 token": made(scaling=TOKEN, n=40, gated=True, bias=True, activation="silu", **GATHER),
    "fp8 block": made(scaling=BLOCK, n=200, k=400, rows=75, groups=70, out_dtype="f32"),
    "fp8 gathered blocks": made(scaling=PADDED, n=140, k=272, out_dtype="f32", **GATHER),
    "fp8 masked blocks": made(scaling=PADDED, n=140, k=272, add=True, **MASKED),
    "fp8 masked tokens": made(scaling=TOKEN, gather=True, num_x_rows=5, out_dtype="f32", **MASKED),
    "fp8 offset": made(scaling=BLOCK | {"block_offset": (64, 64)}, n=140, k=320, out_dtype="f32", **GATHER),
    "fp8 odd": made(scaling=BLOCK, n=33, k=259, rows=30, out_dtype="f32"),
    "fp8 odd gathered": made(scaling=TOKEN, n=33, k=259, out_dtype="f32", **GATHER),
    "fp8 nothing": made(scaling=BLOCK, k=0, rows=5, bias=True),
    "fp8 cleared": made(scaling=BLOCK, zero_tail=True, n=33, k=272, layout="masked", rows=9),
    "i8": made("i8", rows=40, zero_tail=True),
    "i8 tokens": made("i8", TOKEN, bias=True, out_dtype="f32", **GATHER),
    "i8 masked ranges": made("i8", {"kind": "token", "weight_kind": "tensor", "weight_starts": (3,)}, add=True, **MASKED),
    "i8 masked": made("i8", gather=True, num_x_rows=5, k=77, **MASKED),
}  # fmt: skip


def drawn(problem, seed=3):
    """Groups one after another, some empty, whose rows are numbers; rows of no group, and their scales, are NaN."""
    args = inputs.make_args(problem, seed)
    if problem.dtype != "i8":
        args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(seed)))
    if problem.layout == "masked":
        return args
    args = replace(args, indptr=halves.indptr_of(problem))
    first, stop = int(args.indptr[0]), int(args.indptr[-1])
    if not problem.gather:
        lost = [args.x.view(torch.uint8)] if problem.dtype != "i8" else []
        for tensor in lost:
            tensor[:first], tensor[stop:] = 0x7F, 0x7F  # NaN in both types of fp8
        if args.x_scale is not None and args.x_scale.shape[0] == problem.total_num_rows:
            args.x_scale[:first], args.x_scale[stop:] = float("nan"), float("nan")
    return args


def run(problem, args):
    subject = emulator.subject(problem)
    assert subject.plan.sku.impl == "wgmma_groups"
    assert subject.plan.sku.precision_guarantee.error_model.id == ("matmul-s32" if problem.dtype == "i8" else "matmul-mma8")
    before = numerics.snapshot(problem, args)
    subject.run(args)
    return numerics.check(problem, args, subject.plan.sku, before=before)


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound_and_writes_no_row_of_no_group(name):
    report = run(FORMS[name], drawn(FORMS[name]))
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


@emulator.needed
@pytest.mark.parametrize("name", ["fp8 block", "fp8 gathered blocks", "fp8 masked blocks", "fp8 masked tokens", "i8 tokens"])
def test_a_row_has_its_bits_in_any_group(name):
    """The bits of the product of its group alone, from the kernel for single products."""
    problem, judged = FORMS[name], 0
    args = drawn(problem)
    run(problem, args)
    for group, places in enumerate(places_of(problem, args)):
        if not places:
            continue
        one = changed(product_of(problem), total_num_rows=len(places))
        alone, given = part_of(problem, args, group, places), part_of(problem, args, group, places)
        alone = replace(alone, out=torch.zeros_like(alone.out))
        subject = emulator.subject(one)
        assert subject.plan.sku.impl == "wgmma_tile"
        subject.run(alone)
        assert torch.equal(alone.out.nan_to_num(7.0), given.out.nan_to_num(7.0))
        judged += bool((given.out != 0).any())
    assert judged > 1


@emulator.needed
@pytest.mark.parametrize("first", [0, 468])
def test_a_lost_part_of_k_shows(first):
    """Terms that outweigh all others are in the first or in the last part."""
    problem = made(scaling=BLOCK, n=8, k=500, rows=6, groups=2, out_dtype="f32")
    args = replace(inputs.make_args(problem, 1), indptr=torch.tensor([0, 2, 6], dtype=torch.int32))
    args.x.fill_(0.0), args.weight.fill_(0.0), args.x_scale.fill_(1.0), args.weight_scale.fill_(1.0)
    args.x[:, first : first + 32], args.weight[0, :, first : first + 32], args.weight[1, :, first : first + 32] = 1.0, 1.0, 2.0
    run(problem, args)
    assert torch.equal(args.out, torch.tensor([32.0] * 2 + [64.0] * 4)[:, None].expand(6, 8))


@emulator.needed
def test_sums_of_the_largest_integers_are_exact():
    problem = made("i8", rows=70, k=272, n=40, groups=2)
    args = replace(inputs.make_args(problem, 1), indptr=torch.tensor([0, 1, 70], dtype=torch.int32))
    args.x[:2], args.weight[:, 3] = -128, -128
    want = torch.cat([args.x[:1].double() @ args.weight[0].double().T, args.x[1:].double() @ args.weight[1].double().T])
    emulator.subject(problem).run(args)
    assert torch.equal(args.out, want.to(torch.int32))
    assert int(args.out[1, 3]) == 128 * 128 * 272


@emulator.needed
@pytest.mark.parametrize("name", ["fp8 gathered blocks", "fp8 token"])
def test_a_row_that_takes_none_of_x_reads_no_scale_and_is_not_written(name):
    halves.writes_no_row_that_takes_none(FORMS[name], drawn(FORMS[name]))


@emulator.needed
@pytest.mark.parametrize("name", ["fp8 gathered blocks", "i8 tokens"])
def test_rows_have_the_same_bits_among_any_rows_of_any_groups(name):
    halves.the_same_among_any_rows(FORMS[name], determinism.Campaign(needles=4, compositions=2, largest=8))


@emulator.needed
@pytest.mark.parametrize("tile", [Tile(128, 128, 1), Tile(128, 128, 1, 2)], ids=str)
def test_no_tile_changes_a_bit(tile):
    problem = made(scaling=BLOCK, n=140, k=272, rows=200, groups=2, out_dtype="f32")
    args = replace(inputs.make_args(problem, 2), indptr=torch.tensor([1, 150, 200], dtype=torch.int32))
    args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(5)))
    found = []
    for one in (Tile(64, 64, 2), tile):
        forget_specializations()
        with patch.object(backend, "whole_tile_of", lambda sizes, sms, alone, one=one: one):
            call = replace(args, out=torch.zeros_like(args.out))
            emulator.subject(problem).run(call)
            found.append(call.out)
    forget_specializations()
    assert torch.equal(found[0], found[1])
    assert bool((found[0][1:] != 0).any(1).all())


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("weight_layout", made(weight_layout="kn")),
        ("scaling.kind", made(scaling={"kind": "mx32", "x_scale_dtype": "f8_e8m0", "weight_scale_dtype": "f8_e8m0"})),
        (r"scaling.block_offset\[1\]", made(scaling=BLOCK | {"block_offset": (0, 40)})),
    ],
)
def test_what_tensor_cores_cannot_do_is_declined_by_name(field, problem):
    with pytest.raises(UnsupportedError, match=field):
        Plan.select(problem, Preference(backend="cuda"), SM_90A)


def test_the_examples_have_a_kernel():
    forget_specializations()
    eight = [one for one in EXAMPLES if isinstance(one, GroupedMatmulDescriptor) and one.dtype in ("f8_e4m3", "f8_e5m2")]
    assert len(eight) == 4
    for problem in eight:
        assert explain(problem, target=SM_90A).chosen.name == "cuda/wgmma_groups"


@pytest.mark.parametrize(
    "problem",
    [
        made(scaling=BLOCK, groups=8, rows=4096, n=4096, k=4096),
        made(scaling=BLOCK, groups=8, rows=4096, n=4096, k=4096, gather=True),
        pytest.param(made(scaling=TOKEN, groups=8, rows=4096, n=4096, k=4096, layout="masked"), marks=pytest.mark.heavy),
        pytest.param(made("i8", TOKEN, groups=8, rows=4096, n=4096, k=4096), marks=pytest.mark.heavy),
    ],
    ids=["blocks", "gathered blocks", "tokens", "integers"],
)
def test_it_compiles_without_spills(problem):
    """The suite refuses slow code of a shipped kernel."""
    forget_specializations()
    plan = Plan.select(problem, Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"
    forget_specializations()
