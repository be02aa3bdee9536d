"""Ops over several ranks, from docs/ops/collective.md, with one rank."""

import torch

from tests.oracles.cascade import merged
from tests.oracles.near import Near, over, stored, valid, wide
from tests.oracles.norm import normed
from tests.oracles.quantize import of_result
from tests.oracles.sampling import drawn_token, settled_rows


def settled(problem, args):
    return settled_rows(problem, args) if problem.op == "sample_across" else args


def _collective(problem, args):
    """One rank: each collective copies its rows."""
    rows, out = sum(problem.counts), args.out.clone()
    out[:rows] = args.x[:rows]
    return {"out": out}


def _merge(problem, args):
    o, lse = wide(args.o_part), wide(args.lse_part)
    if problem.sinks:
        sink = wide(args.sinks).expand(1, *lse.shape[1:])
        o, lse = torch.cat([o, torch.zeros_like(o[:1])]), torch.cat([lse, sink])
    return dict(zip(("o", "lse"), merged(o, lse), strict=True))


def _logprob(problem, args):
    logits = wide(args.logits)[:, : problem.vocab]
    lse = logits.logsumexp(-1)
    known = (args.label >= 0) & (args.label < problem.vocab)
    own = logits.gather(1, args.label.clamp(0, problem.vocab - 1).long()[:, None])[:, 0]
    value = torch.where(known, own - lse, 0.0) * (-1 if problem.loss else 1)
    size = torch.where(known, own.abs() + lse.abs() + 1, 0.0)
    return {"out": Near(value, size), "lse": Near(lse, lse.abs() + 1)}


def _reduce_norm(problem, args):
    """With one rank the sum is x."""
    n = valid(problem, args)
    residual = wide(args.residual)[:n] if problem.residual != "none" else None
    kept, y = normed(problem, problem.norm, wide(args.x)[:n], args.weight, args.bias, residual)
    if problem.norm == "none" and residual is not None:
        rounded = wide(stored(kept.value, problem.dtype))
        y = Near(rounded, rounded.abs())
    found = {"residual": over(args.residual, slice(n), kept)} if residual is not None else {}
    if problem.quant is None:
        return found | {"out": over(args.out, slice(n), y)}
    if problem.full_out:
        found["full_out"] = over(args.full_out, slice(n), y)
    return found | of_result(problem.quant, y, n, args)


def _sample(problem, args):
    n = valid(problem, args)
    token, held = args.token.clone(), args.valid.clone()
    for r in range(n):
        token[r] = drawn_token(problem, wide(args.logits[r, : problem.vocab]), args, r)
        held[r] = int(token[r] >= 0)
    return {"token": token, "valid": held}


def expected(problem, args):
    assert problem.world == 1
    own = {"collective": _collective, "merge_across": _merge, "logprob_across": _logprob, "all_reduce_norm": _reduce_norm}
    return own.get(problem.op, _sample)(problem, args)
