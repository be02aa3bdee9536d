"""Constants of sums: the bound of fp8 detects a lost step with planted inputs, and chains and segments have the documented
effect.

The machines here add as tensor cores do; no part of them is the bound's.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor, MatmulPlan, Scaling
from opfacade.testing import inputs, numerics
from tests.families.matmul.planted import planted

K, STEP = 16384, 32
FP8 = {"u_acc": 2.0**-24, "k_step": 32.0, "u_step": 34 * 2.0**-13, "chain": 128.0}
BF16 = {"u_acc": 2.0**-23, "k_step": 16.0}


def sku_of(plan, model, **constants):
    """The SKU of a plan with the guarantee of another kernel."""
    promise = plan.sku.precision_guarantee
    told = dict(promise.error_model.constants) | {"u": 2.0**-24} | constants
    made = promise.error_model.model_copy(update={"id": model, "constants": tuple(sorted(told.items()))})
    return plan.sku.model_copy(update={"precision_guarantee": promise.model_copy(update={"error_model": made})})


def judged(d, args, out, model, **constants):
    args = replace(args, out=out.to(args.out.dtype))
    return numerics.check(d, args, sku_of(MatmulPlan.select(d), model, **constants))


def problem(k=K, **fields):
    return MatmulDescriptor(**({"total_num_rows": 3, "n": 8, "k": k, "dtype": "f8_e4m3", "out_dtype": "f32"} | fields))


def factors(d, args):
    """x [rows, k] and weight [n, k] in f64, including the scales of blocks."""
    x, w = args.x.double(), args.weight.double()
    if d.scaling is None:
        return x, w
    parts = args.x_scale.double().repeat_interleave(128, 1)[:, : d.k]
    blocks = args.weight_scale.double().repeat_interleave(128, 1)[:, : d.k].repeat_interleave(128, 0)[: d.n]
    return x * parts, w * blocks


FORMS = {"plain": {}, "blocks": {"scaling": Scaling(kind="block")}, "e5m2": {"dtype": "f8_e5m2"}}


@pytest.mark.parametrize("first", [0, 32, 8000, K - STEP])
@pytest.mark.parametrize("form", FORMS)
def test_a_lost_step_of_planted_products_breaks_the_bound_of_fp8(form, first):
    d = problem(**FORMS[form])
    args = planted(d, first)
    if d.scaling is not None:
        args = replace(args, x_scale=torch.ones_like(args.x_scale), weight_scale=torch.ones_like(args.weight_scale))
    x, w = factors(d, args)
    assert judged(d, args, x @ w.T, "matmul-mma8", **FP8).worst <= 1
    lost = slice(first, first + STEP)
    assert judged(d, args, x @ w.T - x[:, lost] @ w[:, lost].T, "matmul-mma8", **FP8).worst > 1


def test_random_products_of_fp8_hide_a_lost_step():
    """So a kernel needs planted inputs to show it."""
    d = problem()
    args = inputs.make_args(d, 3)
    x, w = factors(d, args)
    assert judged(d, args, x @ w.T - x[:, :STEP] @ w[:, :STEP].T, "matmul-mma8", **FP8).worst < 1


def truncated(value, quantum):
    return torch.trunc(value / quantum) * quantum


def tensor_core(x, w, chain):
    """Sums of fp8: a step truncates its 32 products and its sum at 13 bits below the largest, and chains are added in f32."""
    total, sums = torch.zeros(x.shape[0], w.shape[0]), None
    for first in range(0, x.shape[1], STEP):
        sums = torch.zeros(*total.shape).double() if first % chain == 0 else sums
        products = x[:, None, first : first + STEP] * w[None, :, first : first + STEP]
        addends = torch.cat([products, sums[..., None]], -1)
        largest = addends.abs().amax(-1, keepdim=True).clamp(min=2.0**-60)
        quantum = torch.exp2(torch.floor(torch.log2(largest)) - 13)
        sums = truncated(truncated(addends, quantum).sum(-1), quantum[..., 0])
        if (first + STEP) % chain == 0 or first + STEP >= x.shape[1]:
            total = total + sums.float()
    return total


@pytest.mark.parametrize("kind", ["random", "ones", "planted"])
def test_sums_of_a_tensor_core_keep_the_bound_of_their_chain(kind):
    d = problem(4096)
    args = planted(d, 0, 4096 if kind == "ones" else 32) if kind != "random" else inputs.make_args(d, 3)
    got = tensor_core(*factors(d, args), 128)
    report = judged(d, args, got, "matmul-mma8", **FP8)
    assert 0 <= report.worst <= report.worst_tight <= 1


def test_sums_that_are_never_promoted_break_the_bound_of_a_chain():
    """Products of 1 vanish beside a sum of 16384."""
    d = problem(2 * K)
    args = planted(d, 0, 2 * K)
    got = tensor_core(*factors(d, args), 2 * K)
    assert got.unique().tolist() == [K]
    assert judged(d, args, got, "matmul-mma8", **FP8).worst > 1
    assert judged(d, args, got, "matmul-mma8", **(FP8 | {"chain": 2.0 * K})).worst <= 1


def steps_of_16(x, w, segment):
    """Sums of 16-bit products: a step truncates its sum to 24 bits, and segments are added in f32."""
    total = torch.zeros(x.shape[0], w.shape[0])
    for start in range(0, x.shape[1], segment):
        sums = torch.zeros(*total.shape).double()
        for first in range(start, min(start + segment, x.shape[1]), 16):
            sums = sums + x[:, first : first + 16] @ w[:, first : first + 16].T
            quantum = torch.exp2(torch.floor(torch.log2(sums.abs().clamp(min=2.0**-60))) - 23)
            sums = truncated(sums, quantum)
        total = total + sums.float()
    return total


def test_segments_keep_a_tighter_bound_than_one_chain_does():
    d = problem(dtype="bf16")
    args = inputs.make_args(d, 3)
    args = replace(args, x=(args.x.abs() + 0.3), weight=(args.weight.abs() + 0.3))
    x, w = factors(d, args)
    apart, whole = steps_of_16(x, w, 1024), steps_of_16(x, w, K)
    segmented = BF16 | {"segment": 1024.0}
    report = judged(d, args, apart, "matmul-mma16", **segmented)
    assert report.worst <= report.worst_tight <= 1
    assert judged(d, args, whole, "matmul-mma16", **segmented).worst_tight > 1
    assert judged(d, args, whole, "matmul-mma16", **BF16).worst_tight <= 1


@pytest.mark.parametrize("lost", [0, 15])
def test_a_lost_segment_breaks_the_bound(lost):
    """A partial sum of a cluster that is not added."""
    d = problem(dtype="bf16")
    args = inputs.make_args(d, 3)
    x, w = factors(d, args)
    part = slice(1024 * lost, 1024 * (lost + 1))
    got = x @ w.T - x[:, part] @ w[:, part].T
    assert judged(d, args, got, "matmul-mma16", **BF16, segment=1024.0).worst > 1


KERNELS = {
    "bf16": (problem(dtype="bf16"), BF16),
    "fp8": (problem(), FP8),
    "groups": (GroupedMatmulDescriptor(groups=3, total_num_rows=9, n=8, k=K, dtype="bf16"), BF16),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_promise_the_sums_that_are_tried_here(name):
    one, wanted = KERNELS[name]
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        sku = Plan.select(one, Preference(backend="cuda"), Target.parse("sm_90a")).sku
    stated = dict(sku.precision_guarantee.error_model.constants)
    assert {constant: stated[constant] for constant in wanted} == wanted
