"""The kernel of e4m3 codes for GPUs before sm_90, on an emulated device: numbers, segments, edges and refusals."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import coded_mma as backend
from opfacade.errors import UnsupportedError
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.matmul.test_copied_groups import number

AMPERE, ADA = Target.parse("sm_80"), Target.parse("sm_89")


def made(rows=5, n=40, k=192, weight=None, dtype="bf16", **more):
    given = {"dtype": "f8_e4m3", "scale_dtype": "f32"} | (weight or {})
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, weight_format=Weight(**given), **more)


ROUNDED = {"group": 128, "dequantise": "rounded"}
FORMS = {
    "columns": made(k=1104, bias=True, activation="silu"),
    "columns of many rows": made(rows=70, n=70, k=336, num_valid=True),
    "blocks": made(k=400, weight=ROUNDED | {"group_offset": 32}, out_dtype="f32"),
    "f16": made(rows=17, k=1056, weight=ROUNDED | {"group": 32, "scale_dtype": "f16"}, dtype="f16", add=True),
    "mx": made(rows=20, k=320, weight={"group": 32, "scale_dtype": "f8_e8m0"}, gated=True),
    "e4m3 scales": made(k=320, weight={"group": 64, "scale_dtype": "f8_e4m3"}, batch=2),
    "a global scale": made(rows=33, weight={"global_scale": True, "scale_dtype": "f16"}),
    "odd k": made(rows=9, n=33, k=77),
}


def subject_of(problem, target=ADA):
    subject = emulator.subject(problem, device_like=target)
    assert subject.plan.sku.impl == "mma_byte_codes"
    return subject


def checked(problem, args):
    subject, before = subject_of(problem), numerics.snapshot(problem, args)
    subject.run(args)
    report = numerics.check(problem, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


@emulator.needed
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_columns_are_the_numbers_of_codes_with_the_scale_of_their_column(dtype):
    """x is a unit matrix: column c has code c, and scale 1, 2 or 3, in f32."""
    problem = made(rows=16, n=256, k=16, dtype=dtype, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    args.weight.view(torch.uint8).copy_(torch.arange(256).repeat(16, 1).mT.to(torch.uint8))
    args.x.copy_(torch.eye(16)), args.weight_scale.copy_((torch.arange(256) % 3 + 1.0)[:, None])
    subject_of(problem, AMPERE).run(args)
    want = torch.tensor([number(code) * (code % 3 + 1) for code in range(256)]).expand(16, 256)
    kept = [code for code in range(256) if code % 128 != 127]
    assert torch.equal(args.out[:, kept], want[:, kept])
    assert bool(args.out[:, [127, 255]].isnan().all())


@emulator.needed
@pytest.mark.parametrize("k", [640, 2208])
def test_a_row_has_its_bits_in_any_batch(k):
    """Alone, among others, in each tile, and if codes or rows are not aligned to sixteen bytes; a k of one
    segment and of two.
    """
    most = made(rows=40, n=72, k=k, weight=ROUNDED, out_dtype="f32")
    args, found = inputs.make_args(most, 5), []
    wide = torch.empty(72, k + 8, dtype=torch.uint8)[:, 3 : k + 3].view(args.weight.dtype)
    off = wide.copy_(args.weight)
    for rows in (40, 16, 8, 1):
        part = most.model_copy(update={"total_num_rows": rows}).revalidated()
        rows_off = torch.empty(rows, k + 5, dtype=args.x.dtype)[:, 2 : k + 2].copy_(args.x[:rows])
        for other in ({}, {"weight": off, "x": rows_off}):
            call = replace(args, **({"x": args.x[:rows]} | other), out=torch.full((rows, 72), float("nan")))
            checked(part, call)
            found.append(call.out)
    assert all(torch.equal(one, found[0][: len(one)]) for one in found)


@emulator.needed
def test_the_last_threads_may_run_first(monkeypatch):
    emulator.last_first(monkeypatch)
    problem = made(rows=40, n=130, k=1088, sm_limit=1, weight=ROUNDED)
    checked(problem, inputs.make_args(problem, 4))


@pytest.mark.parametrize("arch", backend.ARCHS)
@pytest.mark.parametrize("rows", [1, 16, 4096])
def test_it_compiles_without_spills(arch, rows):
    weights = ({}, ROUNDED, {"group": 32, "scale_dtype": "f8_e8m0"})
    if arch not in (backend.ARCHS[0], backend.ARCHS[-1]):  # between them, one for each size
        weights = (weights[(1, 16, 4096).index(rows)],)
    for weight in weights:
        plan = Plan.select(made(rows=rows, n=4096, k=4096, weight=weight), Preference(backend="cuda"), Target.parse(arch))
        plan.compile()
        assert plan.sku.impl == "mma_byte_codes"
        assert plan.cache_state == "shared"


REFUSED = {
    "exact groups": ({"group": 128}, "rounded"),
    "scales of e4m3": ({"group": 64, "scale_dtype": "f8_e4m3"}, "sm_89"),
    "order": ({"num_groups": 3, "dequantise": "rounded"}, "num_groups"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_before_sm_90_is_refused_with_the_cure(name):
    weight, words = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words):
        Plan.select(made(weight=weight), Preference(backend="cuda"), AMPERE)
