"""paged_prefill, paged_decode and ragged_prefill, from docs/ops/attention.md, docs/variants.md and docs/design.md."""

import math

import torch

from tests.oracles.kv_cache import tokens_of
from tests.oracles.near import Near, wide


def attended(score, size, seen, v, of_v, sink):
    """(o, lse) of rows with scores [rows, keys] of one head, as (value, size) each.

    size, of_v: sizes of the scores and of v. A score errs in proportion to its size, and so does each
    probability.
    """
    score = score.masked_fill(~seen, -torch.inf)
    whole = torch.cat([score, score.new_full((len(score), 1), sink)], 1)
    lse = whole.logsumexp(1)
    p = torch.where(lse[:, None] > -torch.inf, (score - lse[:, None]).exp(), 0.0)
    far = torch.where(seen, size, 0.0).amax(1) if size.shape[1] else torch.zeros(len(score), dtype=torch.float64)
    far = far + 1 + torch.where(lse > -torch.inf, lse.abs(), 0.0)
    return (p @ v, (p @ of_v) * far[:, None]), (lse, far)


def window(problem, rows, keys, causal):
    """[rows, keys]: the keys that a row sees; the rows are the last tokens of their request."""
    position, key = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)[None]
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        seen &= key <= position
    if problem.window_left >= 0:
        seen &= key >= position - problem.window_left
    return seen


def capped(problem, score):
    return problem.logits_soft_cap * torch.tanh(score / problem.logits_soft_cap) if problem.logits_soft_cap else score


def evaluated(node, inputs):
    """(value, size) of an expression of a variant, in its JSON form."""
    if "op" not in node:
        value = inputs[node["name"]].double()
        return (value, inputs["size"]) if node["name"] == "score" else (value, value.abs())
    both = [evaluated(one, inputs) for one in node["args"]]
    if node["op"] == "f32":
        return both[0]
    (a, first), (b, second) = both
    if node["op"] in ("add", "sub"):
        return (a + b if node["op"] == "add" else a - b), first + second
    if node["op"] == "mul":
        return a * b, first * second
    assert node["op"] == "eq", node["op"]
    return a == b, torch.zeros(())


def parameters(node, found):
    """The (name, per) of the parameters of a variant."""
    if isinstance(node, dict):
        if "per" in node:
            found.add((node["name"], node["per"]))
        for one in node.get("args", []):
            parameters(one, found)
    return found


def _requests(problem, args):
    """For each request: its rows of q, and K, V [keys, heads, dim], and the (row) indices of its keys for parameters."""
    decode = problem.op == "paged_decode"
    starts = list(range(problem.batch_size + 1)) if decode else args.q_indptr.tolist()
    if problem.op == "ragged_prefill":
        for b in range(problem.batch_size):
            keys = slice(int(args.kv_indptr[b]), int(args.kv_indptr[b + 1]))
            yield b, starts[b], starts[b + 1], wide(args.k[keys]), wide(args.v[keys]), lambda own, keys=keys: own[keys]
        return
    hnd = problem.paged_kv.layout == "HND"
    pools = [tensor.transpose(1, 2) if hnd else tensor for tensor in (args.k_data, args.v_data)]
    scales = [wide(s)[:, None] if problem.kv_scale != "none" else 1.0 for s in (args.k_scale, args.v_scale)]
    for b, own in enumerate(tokens_of(problem, args)):
        first = 0
        if problem.window_left >= 0:  # pages that no row sees may have any id
            first = max(0, len(own) - (starts[b + 1] - starts[b]) - problem.window_left)
        pages = torch.tensor([p if t >= first else 0 for t, (p, _) in enumerate(own)], dtype=torch.long)
        slots = torch.tensor([s for _, s in own], dtype=torch.long)
        if starts[b + 1] == starts[b]:
            continue
        k, v = (wide(pool[pages, slots]) * scale for pool, scale in zip(pools, scales, strict=True))
        unseen = torch.arange(len(own)) < first
        k[unseen], v[unseen] = 0, 0
        yield b, starts[b], starts[b + 1], k, v, lambda own, pages=pages, slots=slots: own[pages, slots]


def _inputs(problem, args, h, rows, keys, keyed, names):
    """The inputs of a variant's expressions for a head: positions and parameters."""
    first, stop = rows
    position = torch.arange(stop - first)[:, None] + keys - (stop - first)
    found = {"q_pos": position, "kv_pos": torch.arange(keys)[None]}
    by = {per: sorted(name for name, own in names if own == per) for per in ("head", "row", "key")}
    for place, name in enumerate(by["head"]):
        found[name] = args.head_params[place, h]
    for place, name in enumerate(by["row"]):
        found[name] = args.row_params[place, first:stop][:, None]
    for place, name in enumerate(by["key"]):
        found[name] = keyed(args.key_params[place])[None]
    return found


def expected(problem, args):
    decode = problem.op == "paged_decode"
    assert not decode or problem.shard is None
    variant = None if decode or problem.variant is None else problem.variant.model_dump(mode="json")
    parts = {part: variant.get(part) for part in ("logits", "mask", "query")} if variant else {}
    assert parts.get("query") is None
    names = set().union(*(parameters(node, set()) for node in parts.values() if node), set())
    dim = problem.head_dim if problem.op == "ragged_prefill" else problem.paged_kv.head_dim
    scale = 1 / math.sqrt(dim) if problem.sm_scale is None else problem.sm_scale
    q = wide(args.q)
    o, lse = Near(wide(args.o).clone(), torch.zeros(args.o.shape, dtype=torch.float64)), None
    if problem.return_lse:
        lse = Near(wide(args.lse).clone(), torch.zeros(args.lse.shape, dtype=torch.float64))
    for b, first, stop, k, v, keyed in _requests(problem, args):
        rows, keys = stop - first, len(k)
        seen = window(problem, rows, keys, not decode and problem.causal)
        if not decode and problem.custom_mask:
            bits = args.packed_mask[int(args.mask_indptr[b]) :].long()
            index = torch.arange(rows * keys).reshape(rows, keys)
            seen &= (bits[index // 8] >> (index % 8) & 1).bool() if rows * keys else seen
        group = problem.num_qo_heads // k.shape[1]
        for h in range(problem.num_qo_heads):
            own = h // group
            if h % group == 0:
                key, value = k[:, own].contiguous(), v[:, own].contiguous()
                of_key, of_value = key.abs(), value.abs()
            by = 1.0
            if not decode and problem.q_scale != "none":
                by = float(args.q_scale[own if problem.q_scale == "head" else 0])
            score = (q[first:stop, h] @ key.T) * scale * by
            size = (q[first:stop, h].abs() @ of_key.T) * abs(scale) * by
            score, visible = capped(problem, score), seen
            if parts:
                inputs = _inputs(problem, args, h, (first, stop), keys, keyed, names) | {"score": score, "size": size}
                if parts.get("logits"):
                    score, size = evaluated(parts["logits"], inputs)
                if parts.get("mask"):
                    visible = seen & evaluated(parts["mask"], inputs)[0]
            sink = float(args.sinks[h]) if problem.sinks else -math.inf
            got, total = attended(score, size, visible, value, of_value, sink)
            o.value[first:stop, h], o.size[first:stop, h] = got
            if lse is not None:
                lse.value[first:stop, h], lse.size[first:stop, h] = total
    return {"o": o} | ({} if lse is None else {"lse": lse})
