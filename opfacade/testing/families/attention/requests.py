"""Batches of the requests of another call: permuted, repeated, separated by empty requests, or a single request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from opfacade.plans._attention.work import rows_each
from opfacade.testing.batches import EMPTY, changed
from opfacade.testing.bits import bits, same_bits
from opfacade.testing.families.attention import oracle
from opfacade.testing.families.attention.call import is_paged

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from opfacade.core.descriptor import Args, Descriptor
    from opfacade.testing.families.attention.call import AttentionCall, Paged, Problem

__all__ = ["EMPTY", "Requests", "bits", "changed", "put_kv", "repaged", "same_bits"]

_QUERIES = ("q", "q_nope", "q_pe")
# Operands that all requests of a call share.
_SHARED = ("k_scale", "v_scale", "q_scale", "sinks", "head_params")


def put_kv(descriptor: Problem, args: AttentionCall, request: int, k: Tensor | None = None, v: Tensor | None = None) -> None:
    """Overwrite the K or V rows [kv_len, kv_heads, head_dim] of one request, for any storage."""
    for name, new in _placed(args, k, v).items():
        if is_paged(descriptor):
            at = oracle.token_places(descriptor, args, request)
            oracle.by_token(getattr(args, name), descriptor)[at] = new
        else:
            first, stop = args.kv_indptr[request : request + 2].tolist()
            getattr(args, name)[first:stop] = new


def _placed(args: AttentionCall, k: Tensor | None, v: Tensor | None) -> dict[str, Tensor]:
    """New rows by operand: a latent row is the value and part of the key."""
    if hasattr(args, "ckv"):
        width = args.ckv.shape[-1]
        found = {"ckv": v[:, 0] if v is not None else None}
        found |= {"ckv": k[:, 0, :width], "kpe": k[:, 0, width:]} if k is not None else {}
    else:
        suffix = "_data" if hasattr(args, "k_data") else ""
        found = {f"k{suffix}": k, f"v{suffix}": v}
    return {name: new for name, new in found.items() if new is not None}


class Requests:
    """The requests of one attention call, as host lists and tensors. Batches of the requests share the paged pools."""

    def __init__(self, descriptor: Problem, args: AttentionCall) -> None:
        self.descriptor: Any = descriptor
        self.args: Any = args
        self.first = oracle.row_starts(descriptor, args)
        self.q_lens = [b - a for a, b in zip(self.first, self.first[1:], strict=False)]
        if is_paged(descriptor):
            self.kv_lens, pages = _paged_requests(descriptor, args)
            self.counts = list(map(len, pages))
            # The last row, which EMPTY = -1 indexes, has no page.
            self.table = _table([*pages, []], max([1, *self.counts]), args.o.device)
        else:
            self.kv_first: list[int] = args.kv_indptr.tolist()
            self.kv_lens = [b - a for a, b in zip(self.kv_first, self.kv_first[1:], strict=False)]

    def rows(self, order: Sequence[int]) -> list[int]:
        """The rows of the original call, in the order of the new call."""
        return [row for r in order if r != EMPTY for row in range(self.first[r], self.first[r + 1])]

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, Any]:
        """(descriptor, args) of a batch of these requests, in which an EMPTY request has no key. spare: the number of pages or
        rows by which the bound exceeds the batch."""
        q_lens = [self._empty_rows if r == EMPTY else self.q_lens[r] for r in order]
        device, rows = self.args.o.device, self._query_rows(order)
        fields: dict[str, Any] = {"batch_size": len(order)}
        values: dict[str, Any] = {"o": _unwritten(self.args.o, len(rows))}
        values |= {n: getattr(self.args, n)[_index(rows, device)] for n in _QUERIES if hasattr(self.args, n)}
        values["lse"] = None if self.args.lse is None else _unwritten(self.args.lse, len(rows))
        values |= {name: getattr(self.args, name) for name in _SHARED if hasattr(self.args, name)}
        if hasattr(self.args, "q_indptr"):
            fields["total_num_rows"] = len(rows)
            values["q_indptr"] = _indptr(q_lens, device)
            values |= self._varied(order, rows)
        more_fields, more_values = (
            self._paged(order, spare) if hasattr(self.descriptor, "paged_kv") else self._ragged(order, spare)
        )
        return changed(self.descriptor, **fields, **more_fields), type(self.args)(**values, **more_values)

    def new_rows(self, order: Sequence[int]) -> list[int]:
        """The indices of the requests' rows, except those of EMPTY requests, in a batch with this order."""
        at, rows = 0, list[int]()
        for r in order:
            count = self._empty_rows if r == EMPTY else self.q_lens[r]
            rows += [] if r == EMPTY else range(at, at + count)
            at += count
        return rows

    def by_row(self, descriptor: Descriptor[Any], name: str, args: Args) -> Tensor:
        return getattr(args, name)  # type: ignore[no-any-return]

    def moved(self, rng: random.Random) -> Requests:
        """The same requests in other pages, if the op has pages."""
        return repaged(self, rng.randrange(2**31)) if hasattr(self.descriptor, "paged_kv") else self

    def _varied(self, order: Sequence[int], rows: list[int]) -> dict[str, Any]:
        """Parameters of rows, and a packed mask; parameters of keys are stored with the keys."""
        import torch

        args, device, values = self.args, self.args.o.device, {}
        if args.row_params is not None:
            values["row_params"] = args.row_params[:, _index(rows, device)]
        if args.packed_mask is not None:
            starts = args.mask_indptr.tolist()
            own = [args.packed_mask[:0] if r == EMPTY else args.packed_mask[starts[r] : starts[r + 1]] for r in order]
            values["packed_mask"] = torch.cat(own) if own else args.packed_mask[:0]
            values["mask_indptr"] = _indptr([part.numel() for part in own], device)
        return values

    @property
    def _empty_rows(self) -> int:
        """The rows of an EMPTY request: none, except in a decode, where all requests have equally many rows."""
        return 0 if hasattr(self.args, "q_indptr") else rows_each(self.descriptor)

    def _query_rows(self, order: Sequence[int]) -> list[int]:
        rows: list[int] = []
        for r in order:
            rows += [0] * self._empty_rows if r == EMPTY else range(self.first[r], self.first[r + 1])
        return rows

    def _paged(self, order: Sequence[int], spare: int) -> tuple[dict[str, Any], dict[str, Any]]:
        import torch

        device, size = self.args.o.device, self.descriptor.paged_kv.page_size
        counts = [0 if r == EMPTY else self.counts[r] for r in order]
        lens = [0 if r == EMPTY else self.kv_lens[r] for r in order]
        values = oracle.pools(self.args)
        values |= {"key_params": self.args.key_params} if hasattr(self.args, "key_params") else {}
        table = self.table[_index(list(order), device)][:, : max([1, *counts])]
        if self.descriptor.page_table == "block":
            values["block_table"] = table.contiguous()
            values["kv_lens"] = torch.tensor(lens, dtype=torch.int32, device=device)
        else:
            values["kv_indptr"] = _indptr(counts, device)
            values["kv_indices"] = table[table >= 0]
            last = [(n - 1) % size + 1 if n else size for n in lens]
            values["last_page_len"] = torch.tensor(last, dtype=torch.int32, device=device)
        return {"max_kv_indices": sum(counts) + spare}, values

    def _ragged(self, order: Sequence[int], spare: int) -> tuple[dict[str, Any], dict[str, Any]]:
        import torch

        device, lens = self.args.o.device, [0 if r == EMPTY else self.kv_lens[r] for r in order]
        index = _index([row for r in order if r != EMPTY for row in range(self.kv_first[r], self.kv_first[r + 1])], device)
        values: dict[str, Any] = {"kv_indptr": _indptr(lens, device)}
        for name in ("k", "v"):
            whole = getattr(self.args, name)
            values[name] = torch.cat([whole[index], torch.full_like(whole[:1].expand(spare, -1, -1), float("nan"))])
        if self.args.key_params is not None:
            values["key_params"] = torch.nn.functional.pad(self.args.key_params[:, index], (0, spare), value=-(2**31))
        return {"total_kv_rows": sum(lens) + spare}, values


def _paged_requests(descriptor: Paged, args: AttentionCall) -> tuple[list[int], list[list[int]]]:
    size = descriptor.paged_kv.page_size
    if args.block_table is not None:
        lens: list[int] = args.kv_lens.tolist()
        return lens, [row[: -(-n // size)] for row, n in zip(args.block_table.tolist(), lens, strict=True)]
    bounds, indices, last = args.kv_indptr.tolist(), args.kv_indices.tolist(), args.last_page_len.tolist()
    pages = [indices[a:b] for a, b in pairwise(bounds)]
    return [(len(own) - 1) * size + end if own else 0 for own, end in zip(pages, last, strict=True)], pages


def _table(pages: list[list[int]], width: int, device: torch.device) -> Tensor:
    import torch

    rows = [own + [-1] * (width - len(own)) for own in pages]
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _index(values: list[int], device: torch.device) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int64, device=device)


def _indptr(lengths: list[int], device: torch.device) -> Tensor:
    import torch

    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _unwritten(like: Tensor, rows: int) -> Tensor:
    return like.new_full((rows, *like.shape[1:]), float("nan"))


def repaged(requests: Requests, seed: int) -> Requests:
    """The same requests in a pool whose physical pages are shuffled."""
    import torch

    args, device, pools = requests.args, requests.args.o.device, oracle.pools(requests.args)
    order = torch.randperm(next(iter(pools.values())).shape[0], generator=torch.Generator().manual_seed(seed))
    place = torch.full((order.numel() + 1,), -1, dtype=torch.int32)  # the last entry stays -1, which means no page
    place[order] = torch.arange(order.numel(), dtype=torch.int32)
    at = order.to(device)
    moved = {name: pool[at] for name, pool in pools.items()}
    if getattr(args, "key_params", None) is not None:
        moved["key_params"] = args.key_params[:, at]
    same = {name: getattr(args, name) for name in type(args).__slots__ if name not in moved}
    other = object.__new__(Requests)
    other.__dict__ |= requests.__dict__
    other.args, other.table = type(args)(**same, **moved), place.to(device)[requests.table.long()]
    return other
