"""mla_decode, from docs/ops/mla.md."""

import math

import torch

from tests.oracles.attention import attended, capped, window
from tests.oracles.kv_cache import tokens_of
from tests.oracles.near import Near, wide


def expected(problem, args):
    assert problem.shard is None
    scale = 1 / math.sqrt(128 + 64) if problem.sm_scale is None else problem.sm_scale
    names = ("o", "lse") if problem.return_lse else ("o",)
    found = {name: Near(wide(getattr(args, name)).clone(), torch.zeros(getattr(args, name).shape, dtype=torch.float64))
             for name in names}  # fmt: skip
    rows = problem.q_len
    for b, own in enumerate(tokens_of(problem, args)):
        first = max(0, len(own) - rows - problem.window_left) if problem.window_left >= 0 else 0
        pages = torch.tensor([p if t >= first else 0 for t, (p, _) in enumerate(own)], dtype=torch.long)
        slots = torch.tensor([s for _, s in own], dtype=torch.long)
        ckv, kpe = wide(args.ckv[pages, slots]), wide(args.kpe[pages, slots])
        ckv[:first], kpe[:first] = 0, 0
        key = torch.cat([ckv, kpe], 1)
        of_key, of_ckv = key.abs(), ckv.abs()
        seen = window(problem, rows, len(own), problem.causal)
        at = slice(b * rows, b * rows + rows)
        for h in range(problem.num_qo_heads):
            q = torch.cat([wide(args.q_nope[at, h]), wide(args.q_pe[at, h])], 1)
            score, size = capped(problem, q @ key.T * scale), q.abs() @ of_key.T * abs(scale)
            sink = float(args.sinks[h]) if problem.sinks else -math.inf
            for name, (value, error) in zip(("o", "lse"), attended(score, size, seen, ckv, of_ckv, sink), strict=True):
                if name in found:
                    found[name].value[at, h], found[name].size[at, h] = value, error
    return found
