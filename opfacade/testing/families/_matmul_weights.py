"""The numbers that a weight's codes represent, by definition, and bounds on their rounding errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.core.dtypes import DTYPES

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor
    from opfacade.testing.inputs import Draw

_F32 = 2.0**-24


def weight_of(problem: MatmulDescriptor, args: MatmulArgs) -> tuple[Tensor, Tensor]:
    """The exact numbers of a weight, [.., k, n] in f64, and bounds on the errors of the rounded numbers."""
    import torch

    weight, k = problem.weight_format, problem.k
    assert weight is not None
    assert args.weight is not None
    assert args.weight_scale is not None
    code = args.weight.double() if weight.dtype == "f8_e4m3" else _unpacked(weight.dtype, args.weight)[..., :k]
    group = [(j + weight.group_offset) // weight.group if weight.group else 0 for j in range(k)]
    if args.weight_groups is not None:
        group = args.weight_groups.tolist()
    at = torch.tensor(group, dtype=torch.int64, device=code.device)
    scale = args.weight_scale.double()[..., at]
    zero = args.weight_zero.double()[..., at] if args.weight_zero is not None else torch.zeros_like(scale)
    whole = (
        args.weight_global.double()
        if args.weight_global is not None
        else torch.ones(1, dtype=torch.float64, device=code.device)
    )
    value = (code * scale + zero if weight.zero == "added" else (code - zero) * scale) * whole
    if weight.dequantise != "rounded":
        return value.mT, torch.zeros_like(value).mT
    parts = (code * scale).abs() + (zero.abs() if weight.zero == "added" else (zero * scale).abs())
    facts = DTYPES[problem.dtype]
    room = 3.03 * _F32 * parts * whole.abs()  # roundings of the sum, the product and the global scale
    return value.mT, (room + facts.roundoff * (value.abs() + room) + facts.underflow + 2.0**-149).mT


def _unpacked(kind: str, stored: Tensor) -> Tensor:
    """The codes [.., n, k] as numbers, decoded bit by bit."""
    import torch

    raw = torch.zeros((*stored.shape[:-1], 2 * stored.shape[-1]), dtype=torch.float64, device=stored.device)
    for half in (0, 1):
        bits = [(stored.to(torch.int64) >> (4 * half + bit)) & 1 for bit in range(4)]
        raw[..., half::2] = _number(kind, *bits)
    return raw


def _number(kind: str, one: Tensor, two: Tensor, four: Tensor, top: Tensor) -> Tensor:
    """The number with these four bits, from the lowest to the highest."""
    if kind != "e2m1":
        return (one + 2 * two + 4 * four + (-8 if kind == "int4" else 8) * top).double()
    exponent, mantissa = 2 * four + two, one.double()  # the exponent bias is 1; exponent 0 is subnormal
    size = (exponent == 0) * mantissa / 2 + (exponent > 0) * (1 + mantissa / 2) * (exponent.double() - 1).exp2()
    return size * (1 - 2 * top)


def draw_weight(draw: Draw, name: str = "weight") -> None:
    """Draws a random weight: any codes, but finite ones for e4m3; scales near 0.01; zero points near the middle. `name` is the
    operand."""
    import torch

    weight, values = draw.descriptor.weight_format, draw.values
    if weight.packed:
        values[name] = draw.integers(0, 256, values[name].shape).to(torch.uint8)
    shape, dtype = values[f"{name}_scale"].shape, values[f"{name}_scale"].dtype
    values[f"{name}_scale"] = (draw.integers(-7, -2, shape).float().exp2() * (1 + draw.uniform(shape))).to(dtype)
    if weight.zero == "int":
        values[f"{name}_zero"] = draw.integers(0, 16, shape).to(torch.uint8)
    elif weight.zero == "float":
        values[f"{name}_zero"] = (8 * draw.uniform(shape)).to(dtype)
    elif weight.zero == "added":
        values[f"{name}_zero"] = draw.normal(shape).to(dtype)
    if weight.global_scale:
        values[f"{name}_global"] = 0.25 + draw.uniform(values[f"{name}_global"].shape)
