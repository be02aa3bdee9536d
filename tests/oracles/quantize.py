"""quantize and dequantize, from docs/ops/quantize.md, and the quantised results of other ops.

`quantize` is exact: the largest |x| is exact, and each quotient is a rounded f32, which is then rounded to the stored type. A
quotient of two f32 in f64, rounded to f32, is the correctly rounded quotient, because 53 is at least 2 * 24 + 2.
"""

import torch

from tests.oracles.near import LARGEST, SLACK, TYPES, Near, f32, over, stored, valid, wide


def scale_of(quant, largest):
    """The scale, in f64, for the largest absolute values that share it."""
    bounded = largest if quant.most is None else largest.clamp(max=quant.most)
    found = f32(bounded.clamp(min=float(torch.tensor(quant.least)))) / LARGEST[quant.dtype]
    if quant.scale_dtype == "f32":
        return f32(found)
    part, exponent = torch.frexp(found)
    return torch.ldexp(torch.ones_like(found), (exponent - (part == 0.5).int()).clamp(-127, 127))


def share(quant, rows, reduce):
    """[shared, elements] reduced along the elements that share a scale: (the result in the shape of the scales, a function that
    gives each element its scale)."""
    count, hidden = rows.shape
    if quant.scale == "tensor":
        return reduce(rows.reshape(1, -1)), lambda scale: scale.expand(count, 1).expand(count, hidden)
    if quant.scale == "token":
        return reduce(rows), lambda scale: scale[:, None].expand(count, hidden)
    if quant.scale == "group":
        own = reduce(rows.reshape(-1, quant.group)).reshape(count, -1)
        return own, lambda scale: scale.repeat_interleave(quant.group, 1)
    high, across = quant.block
    own = torch.stack([torch.cat([reduce(b.reshape(1, -1)) for b in a.split(across, 1)]) for a in rows.split(high)])
    return own, lambda scale: scale.repeat_interleave(high, 0).repeat_interleave(across, 1)[:count, :hidden]


def placed(quant, old, rows, scale):
    """The operand `scale` after the scales of the first rows are written, as f64."""
    value = wide(old).clone()
    if quant.scale == "tensor":
        return scale.clone()
    if quant.scale == "group" and quant.scale_layout != "row":
        value[:, :rows] = scale.T
    else:
        value[: scale.shape[0]] = scale
    return value


def _largest(rows):
    return rows.abs().amax(-1) if rows.shape[-1] else torch.zeros(rows.shape[0], dtype=torch.float64)


def of_result(quant, y, n, args):
    """out and scale of an op that quantises its unrounded result y, the first n rows. The scale is as inexact as the largest
    element of y; at a power of two it may be the next one, and then each quotient may be the other one too."""
    found = {}
    if quant.scale in ("none", "static"):
        low = high = (wide(args.scale) if quant.scale == "static" else torch.ones(1, dtype=torch.float64)).expand(y.value.shape)
    else:
        off = y.size * SLACK + y.extra
        ends = (y.value.abs() - off).clamp(min=0), y.value.abs() + off
        (least, _), (most, spread) = (share(quant, one, _largest) for one in ends)
        # In f32 the ends differ by the error of the largest element, which is part of the tolerance of the scale.
        first, last = scale_of(quant, least), scale_of(quant, most)
        whole = placed(quant, args.scale, n, (first + last) / 2)
        moved = placed(quant, torch.zeros_like(wide(args.scale)), n, (last - first) / 2)
        found["scale"] = Near(whole, torch.zeros_like(whole), moved)
        low, high = spread(first), spread(last)
    top = LARGEST[quant.dtype]
    small, big = (y.value / high).clamp(-top, top), (y.value / low).clamp(-top, top)
    off = (big - small).abs() / 2 + y.extra / low.abs()
    return found | {"out": over(args.out, slice(n), Near((small + big) / 2, y.size / low.abs() + big.abs(), off))}


def _zeros(quant, x):
    """The scales and zero points of ranges that are not symmetric."""
    low, spread = share(quant, x, lambda rows: rows.amin(-1).clamp(max=0))
    high, _ = share(quant, x, lambda rows: rows.amax(-1).clamp(min=0))
    scale = f32(f32(high - low).clamp(min=quant.least) / 255)
    return scale, f32(-128 - f32(low / scale)).round(), spread


def _quantize(problem, args):
    quant, n, found = problem.quant, valid(problem, args), {}
    x = wide(args.x)[:n]
    zero = torch.zeros((), dtype=torch.float64)
    if quant.scale in ("none", "static"):
        scale = wide(args.scale) if quant.scale == "static" else torch.ones(1, dtype=torch.float64)
        zero = wide(args.zero) if quant.zero else zero
    else:
        if quant.zero:
            scale, zero, spread = _zeros(quant, x)
            found["zero"] = placed(quant, args.zero, n, zero).to(args.zero.dtype)
            zero = spread(zero)
        else:
            largest, spread = share(quant, x, _largest)
            scale = scale_of(quant, largest)
        found["scale"] = placed(quant, args.scale, n, scale).float().to(args.scale.dtype)
        scale = spread(scale)
    out = args.out.clone()
    quotient = f32(x / scale)
    out[:n] = stored(quotient.round() + zero if quant.dtype == "i8" else quotient, quant.dtype)
    return found | {"out": out}


def _dequantize(problem, args):
    quant, n = problem.quant, valid(problem, args)
    x = wide(args.x)[:n]

    def spread(tensor):
        tensor = wide(tensor)
        if quant.scale == "static":
            return tensor
        if quant.scale == "group" and quant.scale_layout != "row":
            tensor = tensor.T
        return share(quant, x, _largest)[1](tensor if quant.scale in ("tensor", "block") else tensor[:n])

    value = x - spread(args.zero) if quant.zero else x
    value = value * (1 if quant.scale == "none" else spread(args.scale))
    return {"out": over(args.out, slice(n), Near(value, value.abs()))}


def expected(problem, args):
    assert TYPES[problem.quant.dtype] in (args.x.dtype, args.out.dtype)
    return _quantize(problem, args) if problem.op == "quantize" else _dequantize(problem, args)
