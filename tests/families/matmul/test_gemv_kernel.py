"""The kernel for products of few rows on an emulated device: bounds, the bits of the tiles for many rows, and refusals."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Preference, Target, explain
from opfacade.backends.cuda.matmul_segments import segments_of
from opfacade.core.descriptor import operands_of
from opfacade.errors import UnsupportedError
from opfacade.plan import Plan
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.matmul.test_matmul_kernel import apart, made, replace_sizes

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


FORMS = {
    "plain": made(rows=3, n=40, k=200),
    "one-row": made(rows=1, n=96, k=264, dtype="f16"),
    "eight-rows": made(rows=8, n=17, k=1100),
    "odd": made(rows=5, n=33, k=77, dtype="f16", out_dtype="f32", bias=True, bias_dtype="bf16"),
    "added": made(rows=4, add=True, accumulate=True, beta=0.25, alpha=-2.0, out_dtype="f16"),
    "gated": made(rows=7, n=37, k=64, gated=True, bias=True, activation="gelu_tanh", add=True),
    "batched": made(rows=5, n=40, k=64, batch=3, bias=True, num_valid=True),
    "long": made(rows=2, n=24, k=1040, order="k", out_dtype="f32"),
    "segments": made(rows=6, n=72, k=2104, out_dtype="f32", bias=True),
    "odd-segments": made(rows=2, n=11, k=2059, out_dtype="f32"),
    "no-terms": made(rows=3, n=9, k=0, bias=True, activation="relu"),
    "one-term": made(rows=3, n=9, k=1),
}
OTHERS = ("wgmma_tile",)


def few(problem):
    subject = emulator.subject(problem, forbid=OTHERS)
    assert subject.plan.sku.impl == "gemv"
    return subject


def checked(problem, args):
    before, subject = numerics.snapshot(problem, args), few(problem)
    subject.run(args)
    report = numerics.check(problem, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    args = inputs.make_args(FORMS[name], 3)
    if not FORMS[name].accumulate and not FORMS[name].num_valid:
        args.out.fill_(float("nan"))
    checked(FORMS[name], args)


@emulator.needed
@pytest.mark.parametrize("step", [0, 1, 2, 3])
@pytest.mark.parametrize("name", FORMS)
def test_few_rows_have_the_bits_of_many(name, step):
    """A product of 70 rows by tiles; of its first rows by this kernel, from addresses of any alignment."""
    problem = FORMS[name]
    whole = replace_sizes(problem, total_num_rows=70)
    args = inputs.make_args(whole, 5)
    args = replace(args, num_valid=args.num_valid.fill_(70)) if problem.num_valid else args
    first = args.out.clone()
    subject = emulator.subject(whole)
    assert subject.plan.sku.impl == "wgmma_tile"
    subject.run(args)
    rows = problem.total_num_rows
    part = replace(args, out=first[..., :rows, :].clone(), x=args.x[..., :rows, :])
    part = replace(part, add=args.add[..., :rows, :]) if problem.add else part
    part = replace(part, num_valid=args.num_valid.clamp(max=rows)) if problem.num_valid else part
    if step:
        names = [one for one in operands_of(problem) if one not in ("num_valid", "bias")]
        part = replace(part, **{one: apart(getattr(part, one), step) for one in names})
    few(problem).run(part)
    assert torch.equal(part.out, args.out[..., :rows, :])
    if step:
        around = part.out._base[..., :step].isnan(), part.out._base[..., -step:].isnan()
        assert all(bool(one.all()) for one in around)


@emulator.needed
@pytest.mark.parametrize("step", [0, 1])
def test_nan_stays_in_its_row_and_column(step):
    problem = made(rows=4, n=24, k=100)
    args = inputs.make_args(problem, 3)
    args.x[1, 99], args.weight[5, 3] = float("nan"), float("inf")
    args = replace(args, x=apart(args.x, step), weight=apart(args.weight, step)) if step else args
    few(problem).run(args)
    broken = torch.zeros(4, 24, dtype=torch.bool)
    broken[1], broken[:, 5] = True, True
    assert torch.equal(~args.out.isfinite(), broken)


@emulator.needed
def test_rows_behind_the_valid_ones_are_neither_read_nor_written():
    problem = made(rows=6, n=24, k=72, num_valid=True)
    args = inputs.make_args(problem, 3)
    args.num_valid.fill_(2)
    args.x[2:] = float("nan")
    args.out.fill_(7)
    few(problem).run(args)
    assert (args.out[2:] == 7).all()
    want = args.x[:2].double() @ args.weight.double().mT
    assert (args.out[:2].double() - want).abs().max() <= 2.0**-7 * want.abs().max()


def test_segments_are_in_the_sku():
    assert segments_of(FORMS["segments"]).length == 640
    for name, segment in (("segments", 640), ("long", None), ("plain", None)):
        plan = Plan.select(FORMS[name], Preference(backend="cuda", forbid=OTHERS), SM_90A)
        assert (plan.sku.impl, dict(plan.sku.spec).get("segment")) == ("gemv", segment)


REFUSED = {
    "rows": (made(rows=9), "total_num_rows", "at most 8"),
    "fp8": (made(rows=1, dtype="f8_e4m3"), "dtype", "f16, bf16"),
    "km": (made(rows=1, x_layout="km"), "x_layout", "mk"),
    "kn": (made(rows=1, weight_layout="kn"), "weight_layout", "nk"),
    "sm_limit": (made(rows=1, sm_limit=3), "sm_limit", "None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_problems_are_refused_by_name(name):
    problem, field, allowed = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        Plan.select(problem, Preference(backend="cuda", forbid=OTHERS), SM_90A)
    issues = {(i.argument, i.expected) for i in caught.value.issues if i.argument.startswith("cuda/gemv")}
    assert issues == {(f"cuda/gemv: {field}", allowed)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
def test_it_is_of_sm_90a_alone(arch):
    """Elsewhere its bits are not shown to be those of another kernel."""
    found = {o.name: o for o in explain(made(rows=1), target=Target.parse(arch)).options}
    assert {r.code for r in found["cuda/gemv"].reasons} == {"OPF-S001"}
