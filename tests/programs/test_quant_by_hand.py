"""Quantisation against its formula by hand: exactly one right answer, and the bound of a kernel is 0."""

import pytest
import torch

from opfacade import Plan, Target
from opfacade.plans.quantize import DequantizeDescriptor, Quant, QuantizeDescriptor
from opfacade.testing import inputs
from tests.programs.test_bounds_by_hand import kernel
from tests.support import by_hand_quant as by_hand

DTYPES = by_hand.DTYPES
SCALES = ("tensor", "token", "group", "block")
BLOCK, GROUP = (4, 32), 32
CASES = [(scale, dtype, of) for scale in SCALES for dtype in DTYPES for of in ("f32", "f8_e8m0")]


def quant_of(scale, dtype, of):
    more = {"block": BLOCK} if scale == "block" else {"group": GROUP} if scale == "group" else {}
    return Quant(dtype=dtype, scale=scale, scale_dtype=of, **more)


def wide(x, scale, how):
    """The scale of each element."""
    if how == "block":
        return by_hand.over_blocks(x, scale, BLOCK)
    return by_hand.over_groups(x, scale, GROUP) if how == "group" else scale[..., None] if how == "token" else scale


def most_of(x, how):
    if how == "block":
        return by_hand.of_blocks(x, BLOCK)
    if how == "group":
        return x.abs().unflatten(-1, (-1, GROUP)).amax(-1)
    return x.abs().amax(-1) if how == "token" else x.abs().amax().view(1)


@pytest.mark.parametrize(("scale", "dtype", "of"), CASES)
def test_quantisation_is_its_formula(scale, dtype, of):
    problem = QuantizeDescriptor(total_num_rows=11, hidden=96, dtype="f32", quant=quant_of(scale, dtype, of))
    args = inputs.make_args(problem, 2)
    args.x[3] *= 1e-14  # below the minimum of the maximum
    args.x[5] *= 1e6
    factor = by_hand.scale_of(most_of(args.x, scale), DTYPES[dtype], 1e-10, of == "f8_e8m0")
    want = by_hand.stored(args.x / wide(args.x, factor, scale), DTYPES[dtype])
    Plan.select(problem, target=Target.cpu()).run(args)
    assert torch.equal(args.scale.float().view(factor.shape), factor)
    assert torch.equal(args.out.view(torch.int8), want.view(torch.int8))


@pytest.mark.parametrize(("scale", "dtype"), [(scale, dtype) for scale in (*SCALES, "static") for dtype in DTYPES])
def test_dequantisation_is_its_formula(scale, dtype):
    """A product in f32 that has the number of out."""
    problem = DequantizeDescriptor(total_num_rows=11, hidden=96, dtype="f32", quant=quant_of(scale, dtype, "f32"))
    args = inputs.make_args(problem, 6)
    factor = args.scale.float()
    every = wide(torch.empty(11, 96), factor, "tensor" if scale == "static" else scale)
    want = (args.x.double() * every.double()).float()
    Plan.select(problem, target=Target.cpu()).run(args)
    assert torch.equal(args.out, want)


@pytest.mark.parametrize("scale", ["token", "group"])
def test_no_bound_of_quantisation_is_wider_than_its_formula(scale):
    problem = QuantizeDescriptor(total_num_rows=7, hidden=96, dtype="f32", quant=quant_of(scale, "f8_e4m3", "f32"))
    args = inputs.make_args(problem, 2)
    for node in range(2):
        ball, _, _ = kernel(problem, args, node)
        assert not ball.r.any()


def test_no_bound_of_dequantisation_is_wider_than_its_formula():
    problem = DequantizeDescriptor(total_num_rows=7, hidden=96, dtype="f32", quant=quant_of("token", "f8_e4m3", "f32"))
    ball, _, _ = kernel(problem, inputs.make_args(problem, 2), 0)
    assert not ball.r.any()
