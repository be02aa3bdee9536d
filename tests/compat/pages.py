"""Pages in random order for requests of given lengths, in FlashInfer's forms, and the rows in the pages."""

from dataclasses import dataclass

import torch


@dataclass
class Paged:
    k: torch.Tensor  # in layout
    v: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    last: torch.Tensor
    rows: list  # per request (k, v) [n, kv_heads, dim]

    @property
    def table(self):
        return self.indptr, self.indices, self.last


def paged(lengths, page, kv_heads, dim, layout="NHD", dtype=torch.float32, spare=3):
    counts = [-(-n // page) for n in lengths]
    ids = torch.randperm(sum(counts) + spare).to(torch.int32)
    pool = torch.full((ids.numel(), page, kv_heads, dim), torch.nan).to(dtype)
    k, v, rows, at = pool, pool.clone(), [], 0
    for n, count in zip(lengths, counts, strict=True):
        own = torch.randn(2, n, kv_heads, dim).to(dtype)
        for t in range(n):
            k[ids[at + t // page], t % page], v[ids[at + t // page], t % page] = own[0, t], own[1, t]
        rows.append((own[0], own[1]))
        at += count
    indptr = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    last = torch.tensor([(n - 1) % page + 1 if n else 0 for n in lengths], dtype=torch.int32)
    if layout == "HND":
        k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
    return Paged(k, v, indptr, ids[:at].contiguous(), last, rows)


def indptr(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
