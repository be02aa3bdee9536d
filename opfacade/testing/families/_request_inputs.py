"""Random rows, keys and pages of requests, for all families with requests."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import operands_of
from opfacade.core.dtypes import torch_dtype
from opfacade.testing.inputs import Draw, sizes

if TYPE_CHECKING:
    from torch import Tensor


def split_total(rng: random.Random, total: int, parts: int) -> list[int]:
    """Uneven lengths with the sum `total`, some of them 0."""
    weights = [rng.choice((0.0, 0.2, 1.0, 5.0)) * rng.random() for _ in range(parts)]
    scale = sum(weights)
    lengths = [int(total * w / scale) if scale else 0 for w in weights]
    if parts:
        lengths[rng.randrange(parts)] += total - sum(lengths)
    return lengths


def draw_kv_lengths(draw: Draw, least: Sequence[int]) -> list[int]:
    """Lengths in tokens whose pages fit in the pool, each at least `least`; some requests are empty, and some last pages are
    full."""
    rng, cache, bound = draw.rng, draw.descriptor.paged_kv, draw.descriptor.max_kv_indices
    size, batch = cache.page_size, len(least)
    pages = cache.num_total_pages if bound is None else min(bound, cache.num_total_pages)
    spare = pages - sum(-(-n // size) for n in least)
    lengths = []
    for low in least:
        mine = -(-low // size)
        fair = max(0, spare) if rng.random() < 0.3 else max(0, spare // max(1, batch))
        extra = 0 if rng.random() < 0.1 else rng.randint(min(1, fair), fair)
        spare -= extra
        top = (mine + extra) * size
        bottom = min(top, max(low, top - size + 1))
        lengths.append(rng.choice((top, rng.randint(bottom, top))))
    return lengths


def indptr(draw: Draw, lengths: Sequence[int]) -> Tensor:
    import torch

    return torch.tensor([0, *lengths], device=draw.device).cumsum(0).to(torch.int32)


def paged(draw: Draw, kv_lens: Sequence[int]) -> dict[str, Tensor]:
    """The pools of a paged cache and the page table of requests of these lengths."""
    import torch

    cache = draw.descriptor.paged_kv
    counts = [-(-n // cache.page_size) for n in kv_lens]
    ids = _pages(draw, max(cache.num_total_pages, 1), counts).to(torch.int32).to(draw.device)
    pools = _pools(draw)
    _fill(draw, pools.values(), ids, kv_lens)
    return pools | (_block_table if draw.descriptor.page_table == "block" else _flat_table)(draw, ids, counts, kv_lens)


def _pages(draw: Draw, pool: int, counts: Sequence[int]) -> Tensor:
    """The pages of all requests: distinct if the pool has enough, otherwise a random selection for each request."""
    import torch

    def order() -> Tensor:
        return torch.randperm(pool, generator=torch.Generator().manual_seed(draw.rng.randrange(2**31)))

    if sum(counts) <= pool:
        return order()[: sum(counts)]
    own = [torch.cat([order() for _ in range(-(-count // pool))])[:count] for count in counts if count]
    return torch.cat(own)


def _pools(draw: Draw) -> dict[str, Tensor]:
    """The two pools full of NaN, as separate tensors or as columns of one tensor."""
    operands, cache = operands_of(draw.descriptor), draw.descriptor.paged_kv
    shapes = {n: sizes(spec) for n, spec in operands.items() if spec.paged is not None and spec.dtype == cache.dtype}
    dtype, (shape, other) = torch_dtype(cache.dtype), shapes.values()
    # otherwise the second pool would start at an unaligned address
    if draw.interleaved and shape[-1] * dtype.itemsize % 16 == 0:
        both = draw.nan((*shape[:-1], shape[-1] + other[-1]), dtype)
        return dict(zip(shapes, (both[..., : shape[-1]], both[..., shape[-1] :]), strict=True))
    return {name: draw.nan(shape, dtype) for name, shape in shapes.items()}


def _fill(draw: Draw, pools: Iterable[Tensor], pages: Tensor, kv_lens: Sequence[int]) -> None:
    """Random values in the slots of tokens; other slots stay NaN."""
    import torch

    cache: Any = draw.descriptor.paged_kv
    used = torch.zeros(int(pages.numel()), cache.page_size, dtype=torch.bool, device=draw.device)
    first = 0
    for length in kv_lens:
        count = -(-length // cache.page_size)
        used[first : first + count].view(-1)[:length] = True
        first += count
    page, slot = used.nonzero(as_tuple=True)
    for pool in pools:
        by_token = pool.movedim(cache.token_axis, 1)
        fresh = draw.normal((page.numel(), *by_token.shape[2:])).to(pool.dtype)
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[pool.element_size()]
        by_token.view(bits)[pages.long()[page], slot] = fresh.view(bits)


def _block_table(draw: Draw, pages: Tensor, counts: Sequence[int], kv_lens: Sequence[int]) -> dict[str, Tensor]:
    """An interleaved block table: a slice of a tensor with more columns."""
    import torch

    width = max([1, *counts]) + draw.rng.randint(0, 2)
    beside = 5 if draw.interleaved else 0
    wide = torch.full((len(counts), width + beside), 2**30, dtype=torch.int32, device=draw.device)
    table = wide[:, :width].fill_(-1)
    first = 0
    for request, count in enumerate(counts):
        table[request, :count] = pages[first : first + count]
        first += count
    return {"block_table": table, "kv_lens": draw.i32(kv_lens)}


def _flat_table(draw: Draw, pages: Tensor, counts: Sequence[int], kv_lens: Sequence[int]) -> dict[str, Tensor]:
    import torch

    size = draw.descriptor.paged_kv.page_size
    last = [(n - 1) % size + 1 if n else draw.rng.randint(0, size) for n in kv_lens]
    # entries after the page indices, which no kernel may read
    tail = torch.full((draw.rng.randint(0, 3),), 2**30, dtype=torch.int32, device=draw.device)
    return {"kv_indptr": indptr(draw, counts), "kv_indices": torch.cat([pages, tail]), "last_page_len": draw.i32(last)}
