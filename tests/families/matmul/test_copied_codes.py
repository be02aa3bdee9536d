"""The kernel of four-bit codes for GPUs before sm_90, on an emulated device: numbers, segments, edges and refusals."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import coded_mma as backend
from opfacade.core.descriptor import forget_specializations
from opfacade.errors import UnsupportedError
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.matmul.test_coded_kernel import E2M1, FORMS, MXFP4, NVFP4, made

AMPERE = Target.parse("sm_80")
SUMS = {"sums": made(rows=9, k=1088, weight={"zero": "int", "dequantise": "exact"}, out_dtype="f32")}
SUMS |= {"sums of many rows": made(rows=70, k=77, weight={"dtype": "int4", "group": 32, "dequantise": "group_sum"})}
SUMS |= {"sums in f16": made(k=352, weight={"dtype": "e2m1", "group": 128, "dequantise": "exact"}, dtype="f16")}


def subject_of(problem):
    """On an sm_89, which supports every format."""
    subject = emulator.subject(problem, device_like=Target.parse("sm_89"))
    assert subject.plan.sku.impl == "mma_codes"
    return subject


def checked(problem, args):
    subject, before = subject_of(problem), numerics.snapshot(problem, args)
    subject.run(args)
    report = numerics.check(problem, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


@emulator.needed
@pytest.mark.parametrize("name", FORMS | SUMS)
def test_it_keeps_its_bound(name):
    problem = (FORMS | SUMS)[name]
    checked(problem, inputs.make_args(problem, 3))


@emulator.needed
@pytest.mark.parametrize("dtype", ["int4", "uint4", "e2m1"])
def test_columns_are_the_numbers_that_codes_stand_for(dtype):
    """x is a unit matrix, so that each weight appears alone in the result: (code - zero) * scale of small integers is exact."""
    k, n, group = 320, 72, 32
    problem = made(rows=k, n=n, k=k, weight={"dtype": dtype, "zero": "int" if dtype == "uint4" else "none", "group": group})
    args, groups = inputs.make_args(problem, 1), k // group
    codes = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(1))
    numbers = {"int4": torch.where(codes > 7, codes - 16, codes), "uint4": codes, "e2m1": torch.tensor(E2M1)[codes]}[dtype]
    scale = torch.arange(n * groups).reshape(n, groups) % 7 + 1
    args.x.copy_(torch.eye(k)), args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2]), args.weight_scale.copy_(scale)
    zero = torch.zeros(n, groups)
    if dtype == "uint4":
        zero = torch.arange(n * groups).reshape(n, groups) % 16
        args.weight_zero.copy_(zero)
    subject_of(problem).run(args)
    want = (numbers - zero.repeat_interleave(group, 1)) * scale.repeat_interleave(group, 1)
    assert torch.equal(args.out.double(), want.double().T)


@emulator.needed
@pytest.mark.parametrize("k", [640, 2240])
def test_a_row_has_its_bits_in_any_batch(k):
    """Alone, among others, in each tile, and if codes or rows are not aligned to sixteen bytes; a k of one
    segment and of two.
    """
    most = made(rows=70, n=72, k=k, weight={"zero": "int"}, out_dtype="f32")
    args, found = inputs.make_args(most, 5), []
    off = torch.empty(72, k // 2 + 8, dtype=torch.uint8)[:, 3 : k // 2 + 3].copy_(args.weight)
    for rows in (70, 17, 9, 1):
        part = most.model_copy(update={"total_num_rows": rows}).revalidated()
        rows_off = torch.empty(rows, k + 5, dtype=args.x.dtype)[:, 2 : k + 2].copy_(args.x[:rows])
        for other in ({}, {"weight": off, "x": rows_off}):
            call = replace(args, **({"x": args.x[:rows]} | other), out=torch.full((rows, 72), float("nan")))
            checked(part, call)
            found.append(call.out)
    assert all(torch.equal(one, found[0][: len(one)]) for one in found)


@emulator.needed
@pytest.mark.parametrize("rows", [20, 4])
def test_a_cta_has_many_tiles(rows):
    problem = made(rows=rows, n=200, k=1344, sm_limit=1, weight={"group": 32})
    checked(problem, inputs.make_args(problem, 4))


@emulator.needed
@pytest.mark.parametrize("rows", [4, 40])
def test_the_last_threads_may_run_first(rows, monkeypatch):
    emulator.last_first(monkeypatch)
    problem = made(rows=rows, n=130, k=1088, sm_limit=1, weight={"zero": "int", "group": 128})
    checked(problem, inputs.make_args(problem, 4))


@pytest.mark.parametrize("arch", backend.ARCHS)
@pytest.mark.parametrize("rows", [1, 4096])
def test_it_compiles_and_its_shared_memory_fits(arch, rows):
    target = Target.parse(arch)
    weights = ({"zero": "int"}, {"zero": "int", "dequantise": "exact"}, MXFP4, *([NVFP4] if arch == "sm_89" else []))
    for weight in weights:
        plan = Plan.select(made(rows=rows, n=4096, k=4096, weight=weight), Preference(backend="cuda"), target)
        plan.compile()
        assert plan.sku.impl == "mma_codes"
        assert plan.cache_state == "shared"
    assert backend.Copied(64, 1, None, 0).shared <= target.max_shared_memory
    assert backend.Copied(16, 2, None, 0).shared <= target.max_shared_memory


REFUSED = {
    "exact": ({"dequantise": "exact", "group": 16}, "group"),
    "nvfp4": (NVFP4, "sm_89"),
    "order": ({"zero": "int", "group": None, "num_groups": 3}, "num_groups"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_before_sm_90_is_refused_with_the_cure(name):
    weight, words = REFUSED[name]
    forget_specializations()
    with pytest.raises(UnsupportedError, match=words):
        Plan.select(made(weight=weight), Preference(backend="cuda"), AMPERE)
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        assert Plan.select(made(weight=weight), Preference(backend="cuda"), Target.parse("sm_90a")).sku.backend == "cuda"
