"""The reference gives the same results under settings that change how torch computes: autocast, default types, precision of
products."""

import math
from contextlib import contextmanager, nullcontext

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.core.descriptor import operands_of
from opfacade.select import registry
from opfacade.testing import inputs, numerics


def elements(example):
    return sum(math.prod(dim.size or 1 for dim in spec.shape) for spec in operands_of(example).values())


SMALL = [one for one in registry.examples() if not hasattr(one, "world") and elements(one) < 2**19]


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def short_products():
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


SETTINGS = {
    "autocast to bf16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast to f16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "default f64": lambda: default_dtype(torch.float64),
    "default bf16": lambda: default_dtype(torch.bfloat16),
    "default device": lambda: torch.device("meta"),
}


def outputs_of(example, plan, setting):
    args = inputs.make_args(example, 1)
    with setting():
        plan.run(args)
    written = [name for name, spec in operands_of(example).items() if spec.written]
    return {name: getattr(args, name) for name in written}


def test_most_examples_are_small():
    assert len(SMALL) > 150


@pytest.mark.parametrize("example", SMALL, ids=lambda one: f"{one.op}-{one.digest()[:8]}")
def test_a_setting_of_torch_does_not_change_a_result(example):
    plan = Plan.select(example, Preference(backend="reference"))
    want = outputs_of(example, plan, nullcontext)
    for name, setting in SETTINGS.items():
        for operand, got in outputs_of(example, plan, setting).items():
            assert torch.equal(got.contiguous().view(torch.uint8), want[operand].contiguous().view(torch.uint8)), (
                name,
                operand,
            )


ATTENTION = [one for one in SMALL if one.category == "attention"]


@pytest.mark.parametrize("example", ATTENTION, ids=lambda one: f"{one.op}-{one.digest()[:8]}")
def test_short_products_of_f32_do_not_leave_the_bound(example, monkeypatch):
    """Where torch may round factors to bf16, a product is computed in f64: f32 factors never reach torch.matmul."""
    plan = Plan.select(example, Preference(backend="reference"))
    args, product, seen = inputs.make_args(example, 1), torch.matmul, set()
    before = numerics.snapshot(example, args)
    monkeypatch.setattr(torch, "matmul", lambda a, b: (seen.add(a.dtype), product(a, b))[1])
    with short_products():
        plan.run(args)
    assert torch.float32 not in seen
    assert numerics.check(example, args, plan.sku, before=before).worst <= 1
