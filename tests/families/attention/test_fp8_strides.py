"""fp8 products load only by TMA, which supports neither stride 0 nor strides that are not multiples of 16 bytes; can_implement
reports such strides."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.core.dtypes import torch_dtype
from opfacade.select.registry import configs_for
from tests.emulator.test_emulated_fp8 import paged, ragged
from tests.emulator.test_emulated_wgmma import ragged as wide_ragged

HOPPER = Target.parse("sm_90a")


def call_of(descriptor):
    """A plan for sm_90a and a call whose tensors have no memory."""
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        plan = Plan.select(descriptor, Preference(backend="cuda"), HOPPER)
    tensors = {
        name: torch.empty([3 if d.size is None else d.size for d in spec.shape], dtype=torch_dtype(spec.dtype), device="meta")
        for name, spec in operands_of(descriptor).items()
    }
    return plan, descriptor.args_type(**tensors)


def one_head(tensor, axis):
    return tensor.narrow(axis, 0, 1).expand(tensor.shape)


def codes(plan, args):
    return [(issue.argument, issue.code) for issue in plan.can_implement(args).issues]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_pages_whose_heads_have_stride_0_are_refused(layout):
    plan, args = call_of(paged(layout=layout, page_size=32))
    assert plan.sku.impl == "wgmma_fp8_tile"
    assert codes(plan, args) == []
    axis = 2 if layout == "NHD" else 1
    assert codes(plan, replace(args, k_data=one_head(args.k_data, axis))) == [("k_data", "OPF-A026")]
    assert codes(plan, replace(args, v_data=one_head(args.v_data, 0))) == [("v_data", "OPF-A026")]
    assert codes(plan, replace(args, q=one_head(args.q, 1))) == [("q", "OPF-A026")]


def test_rows_whose_heads_have_stride_0_are_refused():
    plan, args = call_of(ragged())
    assert plan.sku.impl == "wgmma_fp8_tile"
    assert codes(plan, args) == []
    for name in ("q", "k", "v"):
        assert codes(plan, replace(args, **{name: one_head(getattr(args, name), 1)})) == [(name, "OPF-A026")]
        odd = torch.empty_strided(getattr(args, name).shape, (8192, 136, 1), dtype=torch.float8_e4m3fn, device="meta")
        assert codes(plan, replace(args, **{name: odd})) == [(name, "OPF-A027")]


def pages_apart(like, more):
    """A pool of the same shape with `more` unused elements between pages."""
    strides = (like.stride(0) + more, *like.stride()[1:])
    return torch.empty_strided(like.shape, strides, dtype=like.dtype, device="meta")


@pytest.mark.parametrize("name", ["k_data", "v_data"])
def test_a_page_stride_that_is_not_a_multiple_of_the_head_stride_is_refused(name):
    plan, args = call_of(paged(layout="HND", page_size=32))
    pool = getattr(args, name)
    assert min(pool.shape[:2]) > 1
    token, head = pool.stride(2), pool.stride(1)
    assert codes(plan, replace(args, **{name: pages_apart(pool, token)})) == [(name, "OPF-A028")]
    assert codes(plan, replace(args, **{name: pages_apart(pool, head)})) == []
    plan, args = call_of(paged(layout="NHD", page_size=32))
    pool = getattr(args, name)
    assert codes(plan, replace(args, **{name: pages_apart(pool, pool.stride(2))})) == []
    assert codes(plan, replace(args, **{name: pages_apart(pool, 16)})) == [(name, "OPF-A028")]


def test_a_kernel_whose_threads_load_accepts_an_expanded_input():
    plan, args = call_of(wide_ragged())
    assert plan.sku.impl == "wgmma_tile"
    assert codes(plan, replace(args, q=one_head(args.q, 1), k=one_head(args.k, 1), v=one_head(args.v, 1))) == []


def test_exactly_the_kernels_that_load_only_by_tma_require_strides():
    """The requirement also holds for all configs of such a kernel."""
    for descriptor in (paged(), ragged()):
        for candidate in configs_for(type(descriptor)):
            strict = candidate.operands(descriptor) != operands_of(descriptor)
            assert strict is (candidate.impl == "wgmma_fp8_tile"), candidate.name
