"""order="k" on an emulated device: every kernel that accepts a problem gives the bits of one chain in the order of k."""

from dataclasses import replace

import pytest
import torch

from opfacade import Preference, Target, explain
from opfacade.errors import UnsupportedError
from opfacade.plan import Plan
from opfacade.plans.matmul import GroupedMatmulArgs, GroupedMatmulDescriptor
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul import cublaslt_here
from tests.families.matmul.test_matmul_kernel import _any_assembler as _any_assembler
from tests.families.matmul.test_matmul_kernel import made, replace_sizes

ONE_CHAIN = made(rows=70, n=72, k=2104, out_dtype="f32", bias=True, order="k")


def chain(x, weight):
    """f32 sums of products added one by one, like in the emulator's tensor core."""
    found = torch.zeros(x.shape[0], weight.shape[0])
    for k in range(x.shape[1]):
        found += x[:, k : k + 1].float() * weight[:, k].float()
    return found


@pytest.fixture(scope="module")
def given():
    return inputs.make_args(ONE_CHAIN, 5)


@pytest.fixture(scope="module")
def want(given):
    return chain(given.x, given.weight) + given.bias


def run(problem, args):
    subject = emulator.subject(problem)
    call = replace(args, out=torch.full_like(args.out, float("nan")))
    subject.run(call)
    return subject.plan.sku, call.out


@emulator.needed
@pytest.mark.parametrize("rows", [1, 8, 70])
def test_sums_are_one_chain_whatever_the_rows(rows, given, want):
    problem = replace_sizes(ONE_CHAIN, total_num_rows=rows)
    sku, out = run(problem, replace(given, x=given.x[:rows], out=given.out[:rows]))
    assert sku.impl == "wgmma_tile"
    assert "segment" not in dict(sku.spec)
    assert torch.equal(out, want[:rows])


@emulator.needed
@pytest.mark.parametrize("layouts", [("mk", "kn"), ("km", "nk"), ("km", "kn")], ids=" ".join)
def test_layouts_have_the_same_chain(layouts, given, want):
    problem = ONE_CHAIN.model_copy(update={"x_layout": layouts[0], "weight_layout": layouts[1]}).revalidated()
    x = given.x.mT.contiguous() if layouts[0] == "km" else given.x
    weight = given.weight.mT.contiguous() if layouts[1] == "kn" else given.weight
    assert torch.equal(run(problem, replace(given, x=x, weight=weight))[1], want)


@emulator.needed
def test_a_group_has_the_same_chain(given, want):
    problem = GroupedMatmulDescriptor(
        groups=2, total_num_rows=70, n=72, k=2104, dtype="bf16", out_dtype="f32", bias=True, order="k"
    )
    indptr = torch.tensor([0, 30, 70], dtype=torch.int32)
    args = GroupedMatmulArgs(
        x=given.x, weight=torch.stack([given.weight] * 2), bias=torch.stack([given.bias] * 2), indptr=indptr, out=given.out
    )
    assert torch.equal(run(problem, args)[1], want)


@emulator.needed
def test_free_order_cuts_this_problem_into_segments(given, want):
    """So the tests here would detect another order of sums."""
    free = ONE_CHAIN.model_copy(update={"order": "free"}).revalidated()
    assert not torch.equal(run(free, given)[1], want)


def test_a_library_does_not_promise_an_order():
    with cublaslt_here.here(), pytest.raises(UnsupportedError, match="order=k"):
        Plan.select(ONE_CHAIN, Preference(backend="library"), Target.parse("sm_90a"))


def test_the_reference_adds_in_f64():
    """Its sums are not a chain in f32, so only kernels give a trainer and a server the same bits."""
    promise = explain(ONE_CHAIN, target=Target.cpu()).chosen.sku.precision_guarantee
    assert (promise.accumulator, promise.batch_invariant) == ("f64", "none")
