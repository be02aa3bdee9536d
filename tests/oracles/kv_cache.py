"""paged_kv_append, from docs/ops/kv_cache.md, and page tables as they are in docs/design.md."""

import torch

from tests.oracles.near import Near, wide

NOWHERE = -(2**30)


def tokens_of(problem, args):
    """For each request the (page, slot) of each of its tokens."""
    size, found = problem.paged_kv.page_size, []
    for b in range(problem.batch_size):
        if problem.page_table == "block":
            pages, length = args.block_table[b].tolist(), int(args.kv_lens[b])
        else:
            pages = args.kv_indices[args.kv_indptr[b] : args.kv_indptr[b + 1]].tolist()
            length = (len(pages) - 1) * size + int(args.last_page_len[b]) if pages else 0
        found.append([(pages[t // size], t % size) for t in range(length)])
    return found


def spots_of(problem, args, rows):
    """The (page, slot) of each new row; None for a row of no request, and for a page that is stored nowhere."""
    found = [None] * rows
    starts = args.append_indptr.tolist()
    for own, first, stop in zip(tokens_of(problem, args), starts, starts[1:], strict=False):
        for i, spot in zip(range(first, stop), own[len(own) - (stop - first) :], strict=True):
            found[i] = None if spot[0] == NOWHERE else spot
    return found


def positions_of(problem, args):
    """The position of each new row in its request; 0 for a row of no request."""
    found = [0] * problem.total_num_rows
    starts = args.append_indptr.tolist()
    for own, first, stop in zip(tokens_of(problem, args), starts, starts[1:], strict=False):
        found[first:stop] = range(len(own) - (stop - first), len(own))
    return found


def quotient(problem, args, name, new):
    """New rows [rows, heads, head_dim] divided by the scales of the cache, and clamped to its range."""
    top = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}.get(problem.paged_kv.dtype)
    scale = wide(getattr(args, f"{name}_scale"))[:, None] if problem.kv_scale != "none" else 1.0
    value, size = new.value / scale, new.size / scale + (0 if problem.kv_scale == "none" else (new.value / scale).abs())
    return Near(value if top is None else value.clamp(-top, top), size)


def placed_rows(problem, args, name, spots, new):
    """The pool after the rows are written; a copy if the rows have no error."""
    old = getattr(args, f"{name}_data")
    value, size = wide(old).clone(), torch.zeros(old.shape, dtype=torch.float64)
    for i, (page, token) in enumerate(spots):
        where = (page, slice(None), token) if problem.paged_kv.layout == "HND" else (page, token)
        value[where], size[where] = new.value[i], new.size[i]
    return Near(value, size)


def expected(problem, args):
    spots = spots_of(problem, args, problem.total_num_rows)
    rows = [i for i, spot in enumerate(spots) if spot is not None]
    spots = [spots[i] for i in rows]
    k, v = wide(args.k_new)[rows], wide(args.v_new)[rows]
    size = torch.zeros_like(k)
    if problem.rope != "none":
        pairs = (problem.rotary_dim or problem.paged_kv.head_dim) // 2
        table = wide(args.cos_sin_cache)[[positions_of(problem, args)[i] for i in rows]][:, None]
        cos, sin = table[..., :pairs], table[..., pairs:]
        low = torch.arange(pairs) * (2 if problem.rope == "interleaved" else 1)
        high = low + (1 if problem.rope == "interleaved" else pairs)
        a, b = k[..., low], k[..., high]
        k = k.clone()
        k[..., low], k[..., high] = a * cos - b * sin, b * cos + a * sin
        size[..., low], size[..., high] = (a * cos).abs() + (b * sin).abs(), (b * cos).abs() + (a * sin).abs()
    found = {}
    for name, new in (("k", Near(k, size)), ("v", Near(v, torch.zeros_like(v)))):
        found[f"{name}_data"] = placed_rows(problem, args, name, spots, quotient(problem, args, name, new))
    return found
