"""Grouped products whose weight codes are decoded to registers of wgmma, on an emulated device; when they are selected."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import coded_groups as matmul_coded_groups
from opfacade.backends.cuda.matmul import decoded_groups as matmul_decoded_groups
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections
from opfacade.plans.matmul import Weight
from opfacade.testing import numerics
from tests import emulator
from tests.families.matmul import test_copied_groups as few
from tests.families.matmul.test_coded_kernel import AHEAD
from tests.families.matmul.test_copied_groups import INT4, MXFP4, NVFP4, SUMS, UINT4, made
from tests.families.matmul.test_grouped_kernel import drawn, writes_no_row_that_takes_none

SM_90A = Target.parse("sm_90a")
WEIGHTS = {"uint4": UINT4, "int4": INT4, "mxfp4": MXFP4, "nvfp4": NVFP4, "sums": SUMS}
SHORT = Weight(dtype="uint4", group=32, zero="int", scale_dtype="f32", dequantise="group_sum")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


@contextmanager
def paid(whether=True, some=44):
    """Patches the selection of this kernel. whether: it is selected. some: maximum rows per group for tiles of 64 rows."""
    forget_specializations(), forget_selections()
    with (
        patch.object(matmul_coded_groups, "pays", lambda rows: whether),
        patch.object(matmul_coded_groups, "_SOME", some),
        patch.object(matmul_decoded_groups, "pays", lambda *sizes: False),
    ):
        yield
    forget_specializations(), forget_selections()


def ran(problem, args, whether=True, some=44):
    """Runs the problem, and returns the SKU of the kernel that ran."""
    with paid(whether, some):
        subject = emulator.subject(problem)
        subject.run(args)
        sku = subject.plan.sku
    assert sku.impl == ("wgmma_grouped_codes" if whether else "mma_grouped_codes")
    return sku


def run(problem, args, whether=True, some=44):
    before = numerics.snapshot(problem, args)
    report = numerics.check(problem, args, ran(problem, args, whether, some), before=before)
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


PACKED = {name: one for name, one in few.FORMS.items() if one.weight_format is not None and one.weight_format.packed}
FORMS = {name: one for name, one in PACKED.items() if one.k % 64 == 0} | {
    "masked gather": made(MXFP4, layout="masked", groups=9, rows=20, n=40, gather=True, num_x_rows=5, bias=True),
    "most groups are empty": made(MXFP4, groups=70, rows=3, n=40, k=1088),
    "short gather": made(UINT4, n=33, k=64, rows=90, gather=True, num_x_rows=7, sm_limit=1),
    "cleared gather": made(
        UINT4, zero_tail=True, n=33, out_dtype="f32", k=1088, rows=20, gather=True, num_x_rows=7, sm_limit=1
    ),
    "cleared masked": made(NVFP4, zero_tail=True, layout="masked", groups=40, rows=9, n=40),
}


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("some", [0, 999])
def test_it_keeps_its_bound_and_writes_no_row_of_no_group(name, some):
    """The harness checks that rows outside all groups stay unchanged."""
    run(FORMS[name], drawn(FORMS[name]), some=some)


@emulator.needed
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("some", [0, 999])
def test_a_row_has_the_bits_of_the_kernel_of_few(name, some):
    """Products of one and of two segments of k, with and without gather; also if codes or rows are not aligned to 16 bytes.
    Results are f32, because rounding to fewer bits would hide differences.
    """
    for more in ({"k": 1216}, {"k": 320, "gather": True, "num_x_rows": 11, "sm_limit": 2}):
        problem = made(WEIGHTS[name], groups=5, rows=150, out_dtype="f32", n=140, **more)
        args = drawn(problem)
        run(problem, args, False)
        wide = torch.empty(5, 140, args.weight.shape[-1] + 9, dtype=torch.uint8)
        weight = wide[..., 3 : 3 + args.weight.shape[-1]].copy_(args.weight)
        x = torch.empty(len(args.x), problem.k + 5, dtype=args.x.dtype)[:, 2 : 2 + problem.k].copy_(args.x)
        for other in ({}, {"weight": weight}, {"x": x}):
            call = replace(args, **other, out=torch.full_like(args.out, 7.0))
            run(problem, call, some=some)
            first, stop = int(args.indptr[0]), int(args.indptr[-1])
            assert torch.equal(call.out[first:stop], args.out[first:stop])


@emulator.needed
@pytest.mark.parametrize("name", ["uint4", "mxfp4"])
def test_the_last_threads_may_run_first(name, monkeypatch):
    emulator.last_first(monkeypatch)
    for more in ({}, {"gather": True, "num_x_rows": 11}):
        problem = made(WEIGHTS[name], rows=40, n=130, k=1088, sm_limit=1, **more)
        run(problem, drawn(problem))


@emulator.needed
def test_an_id_out_of_range_writes_no_row():
    problem = made(MXFP4, gather=True, num_x_rows=11, rows=40, n=40, k=128)
    with paid():
        writes_no_row_that_takes_none(problem, drawn(problem))


@emulator.needed
@pytest.mark.parametrize("indptr", [[-5, 3, 1, 999], [0, 0, 0, 0], [90, 90, 90, 90], [7, 2, 50, 40]])
def test_tables_that_are_wrong_write_nothing_outside(indptr):
    problem = made(MXFP4, n=40, k=64)
    args = replace(drawn(problem), indptr=torch.tensor(indptr, dtype=torch.int32))
    args.x.fill_(1.0), args.out.fill_(7.0)
    ran(problem, args)
    cut = [min(max(one, 0), 90) for one in indptr]
    held = {row for first, stop in pairwise(cut) for row in range(first, stop)}
    outside = [row for row in range(90) if row not in held]
    assert bool((args.out[outside] == 7.0).all())
    assert bool((args.out[sorted(held)] != 7.0).any(1).all())


def chosen(problem, **prefer):
    forget_selections()
    return Plan.select(problem, Preference(backend="cuda", **prefer), SM_90A)


def of(rows, n=2880, k=2880, weight=MXFP4, groups=32, **more):
    return made(weight, groups=groups, rows=rows, n=n, k=k, gated=True, **more)


def test_some_rows_take_tiles_of_wgmma():
    found = {rows: chosen(of(rows), max_workspace_bytes=0).sku for rows in (4, 64, 1024, 32768)}
    assert found[4].impl == found[64].impl == "mma_grouped_codes"
    assert {dict(found[rows].spec)["tile_rows"] for rows in (1024,)} == {64}
    assert found[1024].impl == found[32768].impl == "wgmma_grouped_codes"
    assert dict(found[32768].spec)["tile_rows"] == 128


def test_a_k_of_no_whole_panel_has_the_kernel_of_few():
    assert chosen(of(4096, k=2888)).sku.impl == "mma_grouped_codes"


def test_short_groups_of_gathered_rows_have_small_tiles():
    """Their scales do not fit in the registers of tiles of 128 rows."""
    found = [
        chosen(of(8192, weight=SHORT, **more), max_workspace_bytes=0).sku for more in ({}, {"gather": True, "num_x_rows": 9})
    ]
    assert [dict(sku.spec)["tile_rows"] for sku in found] == [128, 64]
    assert {sku.impl for sku in found} == {"wgmma_grouped_codes"}


def test_experts_whose_numbers_are_not_rounded_are_never_decoded_to_16_bits():
    assert {chosen(of(rows, weight=SUMS)).sku.impl for rows in (1024, 65536)} == {"wgmma_grouped_codes"}


def test_both_kernels_have_the_same_promise():
    small, large = chosen(of(16)), chosen(of(2048), require="batch_invariant", max_workspace_bytes=0)
    assert large.sku.impl == "wgmma_grouped_codes"
    assert small.precision_guarantee.error_model == large.precision_guarantee.error_model


@AHEAD
@pytest.mark.parametrize("name", WEIGHTS | {"short groups": SHORT})
@pytest.mark.parametrize("rows", [1024, 8192])
def test_it_compiles_without_spills(name, rows):
    for more in ({}, {"gather": True, "num_x_rows": 8192}):
        plan = chosen(of(rows, weight=(WEIGHTS | {"short groups": SHORT})[name], **more), max_workspace_bytes=0)
        assert plan.sku.impl == "wgmma_grouped_codes"
        plan.compile()
        assert plan.cache_state == "shared"
