"""A flash-attention kernel in float64 that rounds where a tensor core rounds, sound or with a fault."""

from dataclasses import dataclass, replace

import torch

TILE, STEP = 64, 16


@dataclass(frozen=True)
class Machine:
    """The roundings of a kernel; the last three fields are faults."""

    dtype: torch.dtype = torch.bfloat16
    p_dtype: torch.dtype | None = None
    accumulator: torch.dtype | None = None
    splits: int = 1
    scale_error: float = 0.0
    no_rescale: bool = False
    unsplit_weights: bool = False

    def but(self, **changes):
        return replace(self, **changes)


def truncated(x):
    """Toward zero to 24 bits: what a tensor core does with its running sum."""
    near = x.float()
    past = near.double().abs() > x.abs()
    return torch.where(past, torch.nextafter(near, torch.zeros_like(near)), near).double()


def rounded(x, dtype):
    return x.to(dtype).double()


def summed(machine, start, a, b):
    """start + a @ b, sixteen products at a time."""
    for i in range(0, a.shape[-1], STEP):
        start = truncated(start + a[..., i : i + STEP] @ b[..., i : i + STEP, :])
        if machine.accumulator is not None:
            start = rounded(start, machine.accumulator)
    return start


def noisy_exp(x, generator):
    """exp with the two-ulp error of ex2.approx."""
    noise = (torch.rand(x.shape, generator=generator, dtype=torch.float64) - 0.5) * 2 * 2.0**-22
    return x.exp() * (1 + noise)


def one_split(machine, q, k, v, scale, seen, generator):
    """(o, lse) of some keys: [r, d] queries, [n, d] keys, [n, dv] values, [r, n] seen."""
    r = q.shape[0]
    o, top = torch.zeros(r, v.shape[1], dtype=torch.float64), torch.full((r, 1), -torch.inf, dtype=torch.float64)
    total = torch.zeros(r, 1, dtype=torch.float64)
    for start in range(0, k.shape[0], TILE):
        keys, values = k[start : start + TILE], v[start : start + TILE]
        s = summed(machine, torch.zeros(r, keys.shape[0], dtype=torch.float64), q, keys.T)
        s = rounded(s * (scale * (1 + machine.scale_error)), torch.float32).masked_fill(
            ~seen[:, start : start + TILE], -torch.inf
        )
        new = torch.maximum(top, s.amax(1, keepdim=True))
        base = torch.where(new == -torch.inf, torch.zeros_like(new), new)
        rescale = torch.ones_like(top) if machine.no_rescale else (top - base).exp()
        p = rounded(noisy_exp(s - base, generator), torch.float32)
        total = rounded(total * rescale + p.sum(1, keepdim=True), torch.float32)
        o = summed(machine, rounded(o * rescale, torch.float32), rounded(p, machine.p_dtype or machine.dtype), values)
        top = new
    base = torch.where(top == -torch.inf, torch.zeros_like(top), top)
    return o / total.clamp(min=1e-300), rounded((base + total.log()).squeeze(1), torch.float32)


def attention(machine, q, k, v, scale, seen, seed=0):
    """o in the machine's dtype and lse in f32, as float64, by `splits` parts that are then merged."""
    generator = torch.Generator().manual_seed(seed)
    size = -(-k.shape[0] // machine.splits)
    parts = [slice(i, i + size) for i in range(0, k.shape[0], size)]
    done = [one_split(machine, q, k[part], v[part], scale, seen[:, part], generator) for part in parts]
    lse = torch.stack([d[1] for d in done])
    if machine.unsplit_weights:
        lse = torch.zeros_like(lse)
    merged = lse.logsumexp(0)
    weights = (lse - merged).nan_to_num(-torch.inf).exp()
    o = sum(w[:, None] * d[0] for w, d in zip(weights, done, strict=True))
    return rounded(o, machine.dtype), rounded(merged, torch.float32)
