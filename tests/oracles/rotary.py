"""rotary and qkv_prepare, from docs/ops/rotary.md.

Each product and each sum is rounded to f32. A product of two f32 is exact in f64, and a sum in f64, rounded to f32, is the
rounded sum, so the results of `rotary` are exact.
"""

import torch

from tests.oracles.kv_cache import placed_rows, quotient, spots_of
from tests.oracles.near import Near, f32, over, stored, valid, wide


def sections_of(problem):
    """The group of each pair."""
    pairs, own = problem.rotary_dim // 2, problem.sections
    if not own:
        return torch.zeros(pairs, dtype=torch.long)
    if problem.section_order == "blocks":
        return torch.repeat_interleave(torch.arange(len(own)), torch.tensor(own))
    count = len(own)
    return torch.tensor([i % count if i < count * own[i % count] else 0 for i in range(pairs)])


def angles(problem, args):
    """(cosines, sines) [rows, pairs], and whether each row is rotated."""
    positions = args.positions if args.positions.ndim == 2 else args.positions[None]
    table, pairs = wide(args.cos_sin_cache), problem.rotary_dim // 2
    own = positions[sections_of(problem)].T.clamp(max=len(table) - 1).long()
    each = torch.arange(pairs).expand(own.shape)
    cos, sin = table[own.clamp(min=0), each], table[own.clamp(min=0), each + pairs]
    return cos, -sin if getattr(problem, "inverse", False) else sin, (positions >= 0).all(0)


def rotated(problem, x, cos, sin, step=f32):
    """Heads [rows, heads, head_dim] in f64, each step rounded by `step`."""
    first, pairs = problem.rotary_offset, problem.rotary_dim // 2
    low = first + torch.arange(pairs) * (2 if problem.interleaved else 1)
    high = low + (1 if problem.interleaved else pairs)
    a, b, cos, sin = x[..., low], x[..., high], cos[:, None], sin[:, None]
    out = x.clone()
    out[..., low] = step(step(a * cos) - step(b * sin))
    out[..., high] = step(step(b * cos) + step(a * sin))
    return out


def _rotary(problem, args):
    n = valid(problem, args)
    cos, sin, kept = angles(problem, args)
    rows = [r for r in range(n) if kept[r]]
    found = {}
    for name in ("q", "k") if problem.num_kv_heads else ("q",):
        x, to = getattr(args, name), name if problem.in_place else f"{name}_out"
        out = getattr(args, to).clone()
        out[rows] = stored(rotated(problem, wide(x)[rows], cos[rows], sin[rows]), out.dtype)
        found[to] = out
    return found


def _heads(problem, x, weight, cos, sin):
    """Heads of q or k after norm and rotation, as Near. Without a norm they are exact up to the last rounding."""
    size = x.abs()
    if problem.norm != "none":
        factor = (x.square().mean(-1, keepdim=True) + problem.eps) ** -0.5
        one = 1 if problem.norm == "rms_one_plus" else 0
        size = size * factor * (wide(weight).abs() + one)
        x = x * factor * (wide(weight) + one)
    size = rotated(problem, size, cos.abs(), sin.abs(), step=lambda y: y.abs()) + rotated(
        problem, size, cos.abs(), -sin.abs(), step=lambda y: y.abs()
    )
    return Near(rotated(problem, x, cos, sin, step=lambda y: y), size)


def _prepare(problem, args):
    n = valid(problem, args)
    cos, sin, kept = angles(problem, args)
    spots = _spots(problem, args)
    rows = [r for r in range(n) if kept[r] and (problem.page_table == "slots" or spots[r] is not None)]
    q = _heads(problem, wide(args.q)[rows], args.q_weight, cos[rows], sin[rows])
    to = "q" if problem.in_place else "q_out"
    found = {to: over(getattr(args, to), rows, q)}
    rows = [r for r in rows if spots[r] is not None]
    k = _heads(problem, wide(args.k)[rows], args.k_weight, cos[rows], sin[rows])
    v = wide(args.v)[rows]
    spots = [spots[r] for r in rows]
    for name, new in (("k", k), ("v", Near(v, torch.zeros_like(v)))):
        found[f"{name}_data"] = placed_rows(problem, args, name, spots, quotient(problem, args, name, new))
    return found


def _spots(problem, args):
    """The (page, token) where each row is stored; None: nowhere."""
    if problem.page_table != "slots":
        return spots_of(problem, args, problem.total_num_rows)
    size = problem.paged_kv.page_size
    return [None if s < 0 else divmod(s, size) for s in args.slots.tolist()]


def expected(problem, args):
    return _rotary(problem, args) if problem.op == "rotary" else _prepare(problem, args)
