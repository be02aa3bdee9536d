"""matmul and grouped_matmul, from docs/ops/matmul.md."""

import torch

from tests.oracles.activation import activated
from tests.oracles.near import LARGEST, SLACK, Near, f32, over, rounded, valid, wide

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decoded(problem, weight, scale, zero=None, whole=None, groups=None):
    """(numbers [n, k], their error) of codes: (code - zero) * scale, or code * scale + zero, times the global scale."""
    own, k = problem.weight_format, problem.k
    if own.dtype == "f8_e4m3":
        code = wide(weight)
    else:
        both = torch.stack([weight.long() & 15, weight.long() >> 4], -1).flatten(-2)[..., :k]
        table = {
            "uint4": [float(c) for c in range(16)],
            "int4": [float(c if c < 8 else c - 16) for c in range(16)],
            "e2m1": [*E2M1, *(-c for c in E2M1)],
        }
        code = torch.tensor(table[own.dtype], dtype=torch.float64)[both]
    if own.num_groups is not None:
        at = groups.long()
    else:
        at = (torch.arange(k) + own.group_offset) // own.group if own.group else torch.zeros(k, dtype=torch.long)
    scale = wide(scale)[:, at]
    zero = torch.zeros(()) if own.zero == "none" else wide(zero)[:, at]
    value = code * scale + zero if own.zero == "added" else (code - zero) * scale
    size = (code * scale).abs() + (zero.abs() if own.zero == "added" else (zero * scale).abs())
    by = 1.0 if whole is None else wide(whole)
    value, size = value * by, size * by
    if own.dequantise != "rounded":
        return value, size, torch.zeros_like(value)
    # Each number is computed in f32. It is rounded there once, and so has no other error, unless the subtraction of a float
    # zero point, a product before a sum, or a global scale also rounds.
    once = not own.global_scale and (own.zero in ("none", "int") or (own.zero == "added" and own.scale_dtype != "f32"))
    value, lost = rounded(f32(value), torch.zeros_like(value) if once else SLACK * size, problem.dtype)
    return value, size, lost


def scaled(problem, x, weight, args):
    """x [rows, k] and weight [n, k], each times its scales, as f64."""
    own, k = problem.scaling, x.shape[1]
    x_scale = wide(args.x_scale)
    weight_scale = wide(args.weight_scale) if problem.weight_format is None else None
    if own.kind in ("tensor", "token"):
        kind = own.weight_kind or own.kind
        x = x * (x_scale.reshape(-1, 1) if own.kind == "token" else x_scale)
        if weight_scale is None:
            return x, weight
        if kind == "token":
            return x, weight * weight_scale[:, None]
        starts = torch.tensor(own.weight_starts, dtype=torch.long)
        number = torch.bucketize(torch.arange(len(weight)), starts, right=True)
        return x, weight * weight_scale[number][:, None]
    each = 128 if own.kind == "block" else 32
    # In columns the rows may be padded.
    rows = x_scale if own.x_scale_layout == "row" or own.kind == "mx32" else x_scale.T
    column = torch.arange(k)
    x = x * rows[: len(x)][:, column // each]
    if own.kind == "mx32":
        return x, weight * weight_scale[:, column // each]
    line = (torch.arange(len(weight)) + own.block_offset[0]) // 128
    return x, weight * weight_scale[line][:, (column + own.block_offset[1]) // 128]


def finished(problem, total, size, extra, bias, add, old, out_scale):
    """The epilogue on sums [rows, columns]: Near, or a tensor of integers."""
    total, size, extra = total * problem.alpha, size * abs(problem.alpha), extra * abs(problem.alpha)
    if bias is not None:
        total, size = total + wide(bias), size + wide(bias).abs()
    value, spread, slope = activated(problem.activation, total)
    # An error of the sum reaches the result as its size times the slope of the activation.
    spread = spread + slope * size
    extra = slope * extra
    if problem.gated:
        up, up_size, up_extra = total[:, 1::2], size[:, 1::2], (extra / slope)[:, 1::2]
        gate, gate_size, gate_extra = value[:, 0::2], spread[:, 0::2], extra[:, 0::2]
        extra = gate_extra * up.abs() + up_extra * gate.abs() + gate_extra * up_extra
        value, spread = gate * up, gate_size * up.abs() + up_size * gate.abs()
    for other in (add, old):
        if other is not None:
            value, spread = value + problem.beta * wide(other), spread + abs(problem.beta) * wide(other).abs()
    if out_scale is not None:
        top = LARGEST[problem.out_dtype]
        value, spread, extra = value / wide(out_scale), spread / wide(out_scale).abs(), extra / wide(out_scale).abs()
        low = -128 if problem.out_dtype == "i8" else -top
        value = value.clamp(low, top)
    return Near(value, spread, extra)


def product(problem, x, weight, args):
    """(sums, their sizes, an absolute error) of x [rows, k] and weight [n, k], or its codes."""
    own = problem.weight_format
    if own is not None:
        whole = args.weight_global if own.global_scale else None
        zero = args.weight_zero if own.zero != "none" else None
        groups = args.weight_groups if own.num_groups is not None else None
        w, size, error = decoded(problem, weight, args.weight_scale, zero, whole, groups)
        x = wide(x)
        x = scaled(problem, x, w, args)[0] if problem.scaling is not None else x
        return x @ w.T, x.abs() @ size.T, x.abs() @ error.T
    x, w = wide(x), wide(weight)
    if problem.scaling is not None:
        if problem.scaling.x_zero:
            # One more term of each sum: -x_zero * weight_sum.
            x, w = torch.cat([x, -wide(args.x_zero).reshape(-1, 1)], 1), torch.cat([w, wide(args.weight_sum)[:, None]], 1)
        x, w = scaled(problem, x, w, args)
    return x @ w.T, x.abs() @ w.abs().T, torch.zeros(len(x), len(w), dtype=torch.float64)


def _batched(problem, args):
    """Calls without the axis of the batch."""
    if problem.batch == 1:
        return [args]
    names = [name for name in problem.operands() if name not in ("num_valid", "bias", "weight_global", "out_scale")]
    return [One(args, {name: getattr(args, name)[b] for name in names}) for b in range(problem.batch)]


class One:
    """The operands of a call, some of them replaced."""

    def __init__(self, args, replaced):
        self._args, self._replaced = args, replaced

    def __getattr__(self, name):
        return self._replaced[name] if name in self._replaced else getattr(self._args, name)


def _out(problem, old, where, near):
    """The operand out: integers are exact without scales."""
    if old.dtype == torch.int32:
        out = old.clone()
        out[where] = near.value.int()
        return out
    return over(old, where, near)


def _joined(parts):
    if isinstance(parts[0], torch.Tensor):
        return torch.stack(parts)
    fields = ([getattr(one, name) for one in parts] for name in ("value", "size", "extra"))
    return Near(*(torch.stack(own) for own in fields))


def _matmul(problem, args):
    found = []
    for own in _batched(problem, args):
        x = own.x.T if problem.x_layout == "km" else own.x
        weight = own.weight.T if problem.weight_layout == "kn" else own.weight
        n = valid(problem, args)
        rows = args_rows(problem, own, slice(n))
        total, size, error = product(problem, x[:n], weight, rows)
        add = own.add[:n] if problem.add else None
        old = own.out[:n] if problem.accumulate else None
        near = finished(
            problem, total, size, error, args.bias if problem.bias else None, add, old,
            args.out_scale if own.out.element_size() == 1 else None,
        )  # fmt: skip
        found.append(_out(problem, own.out, slice(n), near))
    return {"out": found[0] if problem.batch == 1 else _joined(found)}


def args_rows(problem, args, rows):
    """The call with the scales (and zero points) of some rows of x."""
    own = problem.scaling
    if own is None or own.kind == "tensor":
        return args
    fresh = {}
    columns = own.kind == "block" and own.x_scale_layout != "row"
    fresh["x_scale"] = args.x_scale[:, rows] if columns else args.x_scale[rows]
    if own.x_zero:
        fresh["x_zero"] = args.x_zero[rows]
    return One(args, fresh)


def _grouped(problem, args):
    out = args.out
    starts = [] if problem.layout == "masked" else args.indptr.tolist()
    where, parts = [], []
    covered = torch.zeros(out.shape[:-1], dtype=torch.bool)
    for g in range(problem.groups):
        if problem.layout == "k":
            terms = slice(starts[g], starts[g + 1])
            x = (args.x.T if problem.x_layout == "km" else args.x)[:, terms]
            w = (args.weight.T if problem.weight_layout == "kn" else args.weight)[:, terms]
            at, own, call = (g, slice(None)), x, args
            assert problem.scaling is None
            assert problem.weight_format is None
        else:
            w = args.weight[g].T if problem.weight_layout == "kn" else args.weight[g]
            count = int(args.counts[g]) if problem.layout == "masked" else starts[g + 1] - starts[g]
            rows = torch.arange(count) + (0 if problem.layout == "masked" else starts[g])
            at = (g, rows) if problem.layout == "masked" else (rows,)
            source = args.x_rows[rows].long() if problem.gather else rows
            own = args.x[g][rows] if problem.layout == "masked" else args.x[source]
            call = args
            if problem.layout == "masked" and problem.scaling is not None and problem.scaling.kind != "tensor":
                call = One(args, {"x_scale": args.x_scale[g]})
            call = args_rows(problem, call, source)
        group = None if problem.layout == "k" else g
        total, size, error = _in_group(problem, own, w, call, group)
        bias = args.bias[g] if problem.bias else None
        old = out[at] if problem.accumulate else None
        near = finished(
            problem, total, size, error, bias, args.add[at] if problem.add else None, old,
            args.out_scale if out.element_size() == 1 else None,
        )  # fmt: skip
        where.append(at)
        parts.append(near)
        covered[at] = True
    value, size, extra = wide(out).clone(), torch.zeros(out.shape).double(), torch.zeros(out.shape).double()
    if problem.zero_tail:
        value[~covered] = 0
    for at, near in zip(where, parts, strict=True):
        value[at], size[at], extra[at] = near.value, near.size, near.extra
    if out.dtype == torch.int32:
        return {"out": value.int()}
    return {"out": Near(value, size, extra)}


def _in_group(problem, x, w, call, group):
    """product, with the operands of the weight of one group."""
    if group is None:
        return product(problem, x, w, call)
    names = [name for name in ("weight_scale", "weight_zero", "weight_global") if getattr(call, name, None) is not None]
    return product(problem, x, w, One(call, {name: getattr(call, name)[group] for name in names}))


def expected(problem, args):
    return _matmul(problem, args) if problem.op == "matmul" else _grouped(problem, args)
