"""Grouped products whose weight codes are first decoded to a workspace, on an emulated device; when they are selected."""

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import (
    coded_groups as matmul_coded_groups,
)
from opfacade.backends.cuda.matmul import (
    decoded as matmul_decoded,
)
from opfacade.backends.cuda.matmul import (
    decoded_groups as matmul_decoded_groups,
)
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections
from opfacade.plans.moe import FusedMoeDescriptor
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.matmul import test_copied_groups as few
from tests.families.matmul.test_coded_kernel import AHEAD
from tests.families.matmul.test_copied_groups import (
    BLOCKS,
    COLUMNS,
    HALVES,
    INT4,
    MXFP4,
    NVFP4,
    UINT4,
    made,
    number,
    numbers_arrive,
)
from tests.families.matmul.test_grouped_kernel import drawn, writes_no_row_that_takes_none

SM_90A = Target.parse("sm_90a")
WEIGHTS = {"uint4": UINT4, "int4": INT4, "mxfp4": MXFP4, "nvfp4": NVFP4, "e4m3": COLUMNS, "e4m3 in groups": BLOCKS}


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


@contextmanager
def paid(whether=True):
    forget_specializations(), forget_selections()
    registers = patch.object(matmul_coded_groups, "pays", lambda rows: False)
    with registers, patch.object(matmul_decoded_groups, "pays", lambda *sizes: whether):
        yield
    forget_specializations(), forget_selections()


def ran(problem, args, workspace=None, whether=True):
    """The kernel that ran."""
    with paid(whether):
        subject = emulator.subject(problem)
        subject.run(args, workspace)
        sku = subject.plan.sku
    assert sku.impl == ("wgmma_decoded_groups" if whether else "mma_grouped_codes")
    return sku


def run(problem, args, whether=True):
    before = numerics.snapshot(problem, args)
    report = numerics.check(problem, args, ran(problem, args, whether=whether), before=before)
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


# The type of x does not represent the numbers of SUMS.
OTHERS = (None, few.SUMS)
FORMS = {name: one for name, one in few.FORMS.items() if one.weight_format not in OTHERS and one.k % 8 == 0} | {
    "masked e4m3": made(BLOCKS, layout="masked", groups=9, rows=20, n=40, gather=True, num_x_rows=5),
    "most groups are empty": made(MXFP4, groups=70, rows=3, n=40, k=1088),
    "f16 in groups": made(HALVES, dtype="f16", gated=True, n=40, add=True, sm_limit=1),
}


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound_and_writes_no_row_of_no_group(name):
    """The harness checks that rows of no group stay unchanged."""
    run(FORMS[name], drawn(FORMS[name]))


@emulator.needed
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_row_has_the_bits_of_the_kernel_of_few(name):
    """In one chain and in two segments, gathered or not; also if codes or rows are not aligned to sixteen bytes. f32 hides no
    bit.
    """
    for more in ({"k": 1216}, {"k": 328, "gather": True, "num_x_rows": 11, "sm_limit": 2}):
        problem = made(WEIGHTS[name], groups=5, rows=150, out_dtype="f32", n=140, **more)
        args = drawn(problem)
        run(problem, args, False)
        weight = torch.empty(5, 140, args.weight.shape[-1] + 9, dtype=torch.uint8)[..., 3 : 3 + args.weight.shape[-1]]
        weight = weight.view(args.weight.dtype).copy_(args.weight)
        x = torch.empty(len(args.x), problem.k + 5, dtype=args.x.dtype)[:, 2 : 2 + problem.k].copy_(args.x)
        for other in ({}, {"weight": weight, "x": x}):
            call = replace(args, **other, out=torch.full_like(args.out, 7.0))
            run(problem, call)
            first, stop = int(args.indptr[0]), int(args.indptr[-1])
            assert torch.equal(call.out[first:stop], args.out[first:stop])


@emulator.needed
@pytest.mark.parametrize("tile", [matmul_decoded._PAIR, matmul_decoded._WIDE], ids=["pair", "wide"])
def test_other_tiles_have_the_bits_of_the_kernel_of_few(tile):
    problem = made(MXFP4, groups=5, rows=300, out_dtype="f32", n=200, k=1216, sm_limit=2)
    args = drawn(problem)
    run(problem, args, False)
    call = replace(args, out=torch.full_like(args.out, 7.0))
    with patch.object(matmul_decoded, "tile_of", lambda *sizes: tile):
        run(problem, call)
    first, stop = int(args.indptr[0]), int(args.indptr[-1])
    assert torch.equal(call.out[first:stop], args.out[first:stop])


@emulator.needed
@pytest.mark.parametrize("dtype", ["int4", "uint4", "e2m1"])
def test_columns_are_the_numbers_that_codes_stand_for(dtype):
    numbers_arrive(dtype, ran)


@emulator.needed
@pytest.mark.parametrize(("dtype", "scale_dtype"), [("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16")])
def test_columns_are_all_numbers_of_e4m3(dtype, scale_dtype):
    """All 256 codes at each of eight positions, also NaN, in separate columns: a NaN does not affect other columns."""
    k = 32
    weight = BLOCKS.model_copy(update={"group": 32, "scale_dtype": scale_dtype})
    problem = made(weight, groups=2, rows=2 * k, n=256, k=k, dtype=dtype, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    args.weight.view(torch.uint8).copy_(torch.arange(256).repeat(2, k, 1).mT), args.weight_scale.fill_(1.5)
    args.x.copy_(torch.eye(k).repeat(2, 1))
    args = replace(args, indptr=torch.tensor([0, k, 2 * k], dtype=torch.int32))
    ran(problem, args)
    want = torch.tensor([number(code) * 1.5 for code in range(256)]).expand(2 * k, 256)
    kept = [code for code in range(256) if code % 128 != 127]
    assert torch.equal(args.out[:, kept], want[:, kept])
    assert bool(args.out[:, [127, 255]].isnan().all())


@emulator.needed
def test_weights_of_groups_without_rows_are_not_decoded():
    """Only the workspace of two of the nine groups is written."""
    problem = made(UINT4, groups=9, rows=6, n=40, k=64)
    args = inputs.make_args(problem, 1)
    args = replace(args, indptr=torch.tensor([0, 0, 0, 4, 4, 4, 4, 4, 6, 6], dtype=torch.int32))
    scratch = torch.full((9 * 40 * 64 * 2,), 255, dtype=torch.uint8)
    ran(problem, args, scratch)
    written = (scratch.view(9, -1) != 255).any(1)
    assert written.tolist() == [False, False, True, False, False, False, False, True, False]


@emulator.needed
def test_an_id_out_of_range_writes_no_row():
    problem = made(MXFP4, gather=True, num_x_rows=11, rows=40, n=40, k=128)
    with paid():
        writes_no_row_that_takes_none(problem, drawn(problem))


def chosen(problem, **prefer):
    forget_selections()
    return Plan.select(problem, Preference(backend="cuda", **prefer), SM_90A)


def of(rows, n=2880, k=2880, weight=MXFP4, groups=32, **more):
    return made(weight, groups=groups, rows=rows, n=n, k=k, gated=True, **more)


def test_many_rows_decode_first():
    found = {rows: chosen(of(rows)).sku.impl for rows in (4, 64, 512, 32768)}
    assert found == dict.fromkeys((4, 64, 512), "mma_grouped_codes") | {32768: "wgmma_decoded_groups"}


def test_the_workspace_is_the_decoded_weight_of_all_groups():
    assert chosen(of(32768)).workspace_size == 32 * 5760 * 2880 * 2
    assert chosen(of(32768, n=1000, k=328, weight=COLUMNS, groups=3)).workspace_size == 3 * 2000 * 328 * 2


def test_a_smaller_workspace_selects_the_kernel_without_one():
    assert chosen(of(32768), max_workspace_bytes=2**29).sku.impl == "wgmma_grouped_codes"


def test_both_kernels_have_the_same_promise():
    small, large = chosen(of(16)), chosen(of(32768), require="batch_invariant")
    assert large.sku.impl == "wgmma_decoded_groups"
    assert small.precision_guarantee.error_model == large.precision_guarantee.error_model


@AHEAD
@pytest.mark.parametrize("name", WEIGHTS)
def test_it_compiles_without_spills(name):
    for more in ({}, {"gather": True, "num_x_rows": 8192}):
        plan = chosen(of(32768, weight=WEIGHTS[name], **more))
        assert plan.sku.impl == "wgmma_decoded_groups"
        plan.compile()
        assert plan.cache_state == "shared"


def test_a_layer_of_many_tokens_decodes_first():
    layer = FusedMoeDescriptor(
        total_num_rows=8192, experts=32, top_k=4, hidden=2880, width=2880, dtype="bf16", weight_format=MXFP4
    )
    plan = chosen(layer)
    assert plan.workspace_size >= 32 * 5760 * 2880 * 2
