"""adjust_logits, probabilities, sample, topk and verify_drafts, from docs/ops/sampling.md.

The page defines the exponential variates and random numbers of a draw only by their generator, so `settled` chooses arguments
for which a draw has one possible result: greedy rows, rows with one candidate, and distributions with one token.
"""

import dataclasses

import torch

from tests.oracles.near import Near, f32, over, valid, wide

MOST = 2.0**127


def adjusted(problem, args, r, logits):
    """(the adjusted logits of row r, their size) in f64, each step rounded to f32; NaN and -inf are not candidates."""
    a, size = logits.clone(), logits.abs()
    if problem.bitmask:
        token = torch.arange(len(a))
        word = args.bitmask[r].long()[token // 32]
        a[(word >> (token % 32)) & 1 == 0] = -torch.inf
    if problem.bias == "dense":
        a, size = f32(a + wide(args.bias[r])), size + wide(args.bias[r]).abs()
    elif problem.bias == "sparse":
        for token, value in zip(args.bias_tokens[r].tolist(), wide(args.bias_values[r]), strict=True):
            if 0 <= token < len(a):
                a[token], size[token] = f32(a[token] + value), size[token] + value.abs()
    if problem.penalties:
        counts, factor = wide(args.output_counts[r]), wide(args.repetition[r])
        known = args.prompt_mask[r] | (counts > 0)
        a = torch.where(known, torch.where(a > 0, f32(a / factor), f32(a * factor)), a)
        size = torch.where(known, size * torch.maximum(factor, 1 / factor), size)
        off = f32(wide(args.frequency[r]) * counts)
        a = torch.where(counts > 0, f32(f32(a - off) - wide(args.presence[r])), a)
        size = size + (counts > 0) * (off.abs() + wide(args.presence[r]).abs())
    a = limited(a)
    if problem.soft_cap:
        seen = a > -torch.inf
        a = torch.where(seen, problem.soft_cap * torch.tanh(a / problem.soft_cap), a)
    return a, size.nan_to_num(0.0, 0.0, 0.0)


def limited(a):
    """Candidates lie between -2^127 and 2^127."""
    return torch.where(a > -torch.inf, a.clamp(-MOST, MOST), a)


def heated(problem, args, r, a):
    """Divided by the temperature of the row; a row with at most 0 is not changed."""
    heat = float(args.temperature[r]) if problem.temperature else 1.0
    return limited(f32(a / heat)) if heat > 0 else a


def candidates(a):
    """The candidates in their order: the largest first, then the lowest id."""
    a = limited(a.masked_fill(a.isnan(), -torch.inf))
    order = torch.argsort(a, descending=True, stable=True)
    return order[a[order] > -torch.inf], a


def kept_tokens(problem, args, r, order, a):
    """The first candidates that every filter of row r keeps, from their logits."""
    count, masses = len(order), torch.round(2.0**40 * (a[order] - a[order[:1]]).exp())
    return order[: _prefix(problem, args, r, count, masses)]


def _prefix(problem, args, r, count, masses):
    if not count:
        return 0
    kept, first = count, count
    if problem.top_k:
        k = int(args.top_k[r]) if 0 < int(args.top_k[r]) < problem.vocab else count
        kept = first = min(count, k, problem.max_top_k or count)
    if problem.top_p and float(args.top_p[r]) < 1:
        p, total = float(args.top_p[r]), masses[: first if problem.order == "top_k_first" else count].sum()
        reached = (masses.cumsum(0) >= p * total).nonzero()
        kept = min(kept, 1 if p <= 0 else int(reached[0]) + 1 if len(reached) else count)
    if problem.min_p and float(args.min_p[r]) > 0:
        kept = min(kept, max(1, int((masses >= float(args.min_p[r]) * masses[0]).sum())))
    return kept


def drawn_token(problem, logits, args, r):
    """The token of a settled row; -1 without candidates."""
    order, a = candidates(heated(problem, args, r, logits))
    kept = kept_tokens(problem, args, r, order, a)
    if not len(kept):
        return -1
    assert float(args.temperature[r]) <= 0 or len(kept) == 1, "this row has several possible tokens"
    return int(order[0])


def settled_rows(problem, args):
    """Greedy rows; with top_k, every second row keeps one token at a temperature."""
    heat = torch.zeros_like(args.temperature)
    fresh = {"temperature": heat}
    if problem.top_k:
        heat[1::2] = 0.7
        fresh["top_k"] = args.top_k.clone()
        fresh["top_k"][1::2] = 1
    return dataclasses.replace(args, **fresh)


def settled(problem, args):
    if problem.op == "sample":
        return settled_rows(problem, args)
    if problem.op != "verify_drafts" or problem.kind not in ("chain", "tree"):
        return args
    # Distributions with one token each: in two of three places that of a child, otherwise any token. The links are those of a
    # binary tree, because random links form no tree.
    b, n, vocab = problem.batch_size, problem.num_drafts, problem.vocab
    target, draft = torch.zeros_like(args.target_probs), args.draft_tokens.clamp(0, vocab - 1)
    chosen = torch.randint(0, vocab, (b, n + 1), generator=torch.Generator().manual_seed(n))
    fresh = {}
    if problem.kind == "tree":
        fresh = {name: torch.full_like(getattr(args, name), -1) for name in ("first_child", "next_sibling")}
    for node in range(n + 1):
        children = [node + 1] if problem.kind == "chain" else [2 * node + 1, 2 * node + 2]
        children = [child for child in children if child <= n]
        if problem.kind == "tree" and children:
            fresh["first_child"][:, node] = children[0]
            fresh["next_sibling"][:, children[0]] = children[-1] if len(children) > 1 else -1
        for request in range(b):
            if children and (turn := (request + node) % 3):
                chosen[request, node] = draft[request, children[-1 if turn == 2 else 0] - 1]
    target.scatter_(2, chosen[..., None], 1.0)
    fresh |= {"target_probs": target, "draft_tokens": draft}
    if problem.kind == "chain":
        fresh["draft_probs"] = torch.zeros_like(args.draft_probs).scatter_(2, draft.long()[..., None], 1.0)
    return dataclasses.replace(args, **fresh)


def _adjust(problem, args):
    n = valid(problem, args)
    rows = [adjusted(problem, args, r, wide(args.logits[r])) for r in range(n)]
    value = [heated(problem, args, r, a.masked_fill(a.isnan(), -torch.inf)) for r, (a, _) in enumerate(rows)]
    size = [s / heat if (heat := float(args.temperature[r]) if problem.temperature else 1.0) > 0 else s
            for r, (_, s) in enumerate(rows)]  # fmt: skip
    both = [torch.stack(own) if n else torch.zeros(0, problem.vocab, dtype=torch.float64) for own in (value, size)]
    return {"logits": over(args.logits, slice(n), Near(*both))}


def _distribution(a, kept):
    """(value, size) over the kept tokens, 0 elsewhere."""
    value, size = torch.zeros_like(a), torch.zeros_like(a)
    if len(kept):
        value[kept] = a[kept].softmax(0)
        size[kept] = value[kept] * (a[kept].abs() + a[kept].abs().amax() + 1)
    return value, size


def _probabilities(problem, args):
    n, name = valid(problem, args), "masked" if problem.form == "mask" else "out"
    value, size = torch.zeros(n, problem.vocab, dtype=torch.float64), torch.zeros(n, problem.vocab, dtype=torch.float64)
    masked = args.masked.clone() if name == "masked" else None
    for r in range(n):
        x = wide(args.x[r])
        if problem.form == "renorm":
            x = x.masked_fill(~(x > 0), 0.0)
            order = torch.argsort(x, descending=True, stable=True)
            order = order[x[order] > 0]
            kept = order[: _prefix(problem, args, r, len(order), torch.round(2.0**40 * x[order] / x[order[:1]]))]
            value[r, kept] = x[kept] / x[kept].sum()
            size[r] = value[r]
            continue
        order, a = candidates(heated(problem, args, r, x))
        kept = kept_tokens(problem, args, r, order, a)
        if masked is not None:
            masked[r] = -torch.inf
            masked[r, kept] = args.x[r, kept]
        value[r], size[r] = _distribution(a, kept)
    return {name: masked if masked is not None else over(args.out, slice(n), Near(value, size))}


def _sample(problem, args):
    n = valid(problem, args)
    found = {"token": args.token.clone(), "valid": args.valid.clone()}
    near = {}
    for r in range(n):
        source = int(args.indices[r]) if problem.indices else r
        own, _ = adjusted(problem, args, r, wide(args.logits[source]))
        order, a = candidates(heated(problem, args, r, own))
        token = drawn_token(problem, own, args, r)
        found["token"][r], found["valid"][r] = token, int(token >= 0)
        logprob, size = a - a[order].logsumexp(0), a.abs() + (a[order].abs().amax() if len(order) else 0) + 1
        if problem.report != "none":
            near.setdefault("logprob", []).append((logprob[token], size[token]))
            found.setdefault("rank", args.rank.clone())[r] = 0
        if problem.report == "top_n":
            top = order[: problem.top_n]
            assert len(top) == problem.top_n
            found.setdefault("top_tokens", args.top_tokens.clone())[r] = top.int()
            near.setdefault("top_logprobs", []).append((logprob[top], size[top]))
        if problem.probs_out == "filtered":
            near.setdefault("probs", []).append(_distribution(a, kept_tokens(problem, args, r, order, a)))
    for name, rows in near.items():
        both = Near(torch.stack([value for value, _ in rows]), torch.stack([size for _, size in rows]))
        found[name] = over(getattr(args, name), slice(n), both)
    return found


def _top_k(problem, args):
    n = valid(problem, args)
    values, positions = args.values.clone(), args.positions.clone()
    for r in range(n):
        first, stop = (int(args.starts[r]), int(args.ends[r])) if problem.windows else (0, problem.vocab)
        x = torch.full((problem.vocab,), -torch.inf, dtype=torch.float64)
        x[first:stop] = wide(args.x[r])[first:stop]
        x = x.masked_fill(x.isnan(), -torch.inf)
        order = torch.argsort(x, descending=True, stable=True)
        order = order[x[order] > -torch.inf][: problem.k]
        values[r], positions[r] = -torch.inf, -1
        values[r, : len(order)], positions[r, : len(order)] = args.x[r, order], order.int()
    return {"values": values, "positions": positions}


def _accepted(problem, args, b):
    """(the accepted nodes, the token that follows them) of a request, with a distribution of one token at each node."""
    n, drafts = problem.num_drafts, args.draft_tokens[b].tolist()
    if problem.kind in ("greedy", "coupled"):
        own = args.target_tokens[b].tolist()
        count = next((i for i in range(n) if drafts[i] != own[i] or drafts[i] < 0), n)
        return list(range(1, count + 1)), own[count]
    wanted = args.target_probs[b].argmax(-1).tolist()
    node, nodes = 0, []
    while len(nodes) < n:
        if problem.kind == "chain":
            children = [node + 1] if node < n else []
        else:
            child, children = int(args.first_child[b, node]), []
            while 1 <= child <= n and len(children) < n:
                children.append(child)
                child = int(args.next_sibling[b, child])
        taken = next((child for child in children if drafts[child - 1] == wanted[node]), None)
        if taken is None:
            break
        nodes.append(taken)
        node = taken
    return nodes, wanted[node]


def _verify(problem, args):
    count = int(args.num_valid[0]) if problem.num_valid else problem.batch_size
    names = ("tokens", "accepted", "emitted") + (("nodes",) if problem.kind == "tree" else ())
    found = {name: getattr(args, name).clone() for name in names}
    for b in range(count):
        nodes, last = _accepted(problem, args, b)
        found["tokens"][b] = -1
        found["tokens"][b, : len(nodes) + 1] = torch.tensor([*(int(args.draft_tokens[b, i - 1]) for i in nodes), last])
        found["accepted"][b], found["emitted"][b] = len(nodes), len(nodes) + 1
        if "nodes" in found:
            found["nodes"][b] = -1
            found["nodes"][b, : len(nodes)] = torch.tensor(nodes, dtype=torch.int32)
    return found


def expected(problem, args):
    own = {"adjust_logits": _adjust, "probabilities": _probabilities, "sample": _sample, "topk": _top_k}
    return own.get(problem.op, _verify)(problem, args)
