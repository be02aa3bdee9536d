"""Finds the pages that a call references, from its page table on the host, and copies these pages.

A page is referenced if a kernel may read it: if an entry within a request's length contains its id. An id outside the pool
references page 0, because kernels clamp such ids to 0. In an inconsistent table every entry counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.request_tables import RequestTables

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 20  # elements that are copied or reduced at a time


@dataclass(frozen=True, slots=True)
class Axes:
    """The indices of an operand's page axis and token axis."""

    page: int
    token: int


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages that a call references, on the CPU. ids: in ascending order (int64); tokens: the number of used tokens of each
    page.

    named: whether each entry of the table is within a request's length.
    """

    ids: Tensor
    tokens: Tensor
    named: Tensor


def axes(descriptor: Descriptor[Any]) -> dict[str, Axes]:
    """The operands that have elements for each token of the pool."""
    return {name: Axes(*spec.paged) for name, spec in operands_of(descriptor).items() if spec.paged is not None}


def table_name(descriptor: Descriptor[Any]) -> str:
    """The operand that contains page ids; empty for an op without pools."""
    tables = descriptor.request_tables()
    return tables.pages if tables is not None else ""


def pages(descriptor: Descriptor[Any], tensors: Mapping[str, Tensor]) -> Pages | None:
    """The pages that a call references; None for an op without pools. Waits for the device."""
    import torch

    tables = descriptor.request_tables()
    if tables is None or not tables.pages:
        return None
    table, tokens = _listed(tables, tensors)
    named = tokens > 0
    sound = (table >= 0) & (table < tables.num_pages)
    ids, place = torch.unique(torch.where(sound, table, 0)[named], return_inverse=True)
    most = torch.zeros(ids.numel(), dtype=torch.int64).scatter_reduce(0, place, tokens[named], "amax")
    if ids.numel() == 0:  # keeps one page, because a descriptor with an empty pool is another problem
        first = min(1, tables.num_pages)
        return Pages(torch.arange(first), torch.zeros(first).long(), named)
    return Pages(ids[: tables.num_pages], most[: tables.num_pages], named)


def _listed(tables: RequestTables, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Each entry of the page table, and the number of its request's tokens on that page; on the CPU."""
    table, lens = (tensors[name].cpu().long() for name in (tables.pages, tables.lens))
    if tables.block:
        return table, _block_tokens(table, lens, tables.page_tokens)
    return table, _flat_tokens(table, tensors[tables.starts].cpu().long(), lens, tables.page_tokens)


def _block_tokens(table: Tensor, lens: Tensor, page_tokens: int) -> Tensor:
    """lens: the length of each request, which is one row of the table."""
    import torch

    return (lens[:, None] - torch.arange(table.shape[1]) * page_tokens).clamp(0, page_tokens)


def _flat_tokens(table: Tensor, starts: Tensor, last: Tensor, page_tokens: int) -> Tensor:
    """starts: the first entry of each request, and the end. last: the number of tokens on the last page of each request."""
    import torch

    steps = starts.diff()
    if bool((steps < 0).any()) or int(starts[0]) < 0 or int(starts[-1]) > table.numel():
        return torch.full_like(table, page_tokens)
    tokens = torch.zeros_like(table)
    tokens[int(starts[0]) : int(starts[-1])] = page_tokens
    some = steps > 0
    last = torch.where((last >= 1) & (last <= page_tokens), last, page_tokens)
    tokens[starts[1:][some] - 1] = last[some]
    return tokens


def renumbered(table: Tensor, found: Pages) -> Tensor:
    """A page table, on the CPU, for a pool of only the referenced pages. Entries beyond a request's length become -1; invalid
    ids stay unchanged."""
    import torch

    old = table.cpu().long()
    new = torch.searchsorted(found.ids, old).clamp(max=max(0, found.ids.numel() - 1))
    known = found.ids[new] == old if found.ids.numel() else torch.zeros_like(old, dtype=torch.bool)
    return torch.where(found.named, torch.where(known, new, old), -1).to(table.dtype)


def kept_bytes(tensor: Tensor, axis: int, found: Pages) -> int:
    """The bytes of the referenced pages of one operand."""
    return tensor.nbytes // max(1, tensor.shape[axis]) * found.ids.numel()


def gathered(tensor: Tensor, axis: int, found: Pages) -> Tensor:
    """Copies the referenced pages of one operand to the CPU, bit for bit. On the device, it needs memory for one chunk."""
    import torch

    shape = list(tensor.shape)
    shape[axis] = found.ids.numel()
    kept = torch.empty(shape, dtype=tensor.dtype)
    source, out = _bytes(tensor).movedim(axis, 0), _bytes(kept).movedim(axis, 0)
    step = max(1, CHUNK // max(1, source[:1].numel()))
    for first in range(0, found.ids.numel(), step):
        ids = found.ids[first : first + step].to(tensor.device)
        out[first : first + step] = source.index_select(0, ids).cpu()
    return kept


def _bytes(tensor: Tensor) -> Tensor:
    """8-bit floats as bytes, because some versions of torch cannot gather 8-bit floats."""
    import torch

    return tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


def blocks(tensor: Tensor, where: Axes, found: Pages) -> Iterator[Tensor]:
    """The used tokens of the referenced pages, about one chunk at a time."""
    import torch

    pool = tensor.movedim((where.page, where.token), (0, 1))
    step = max(1, CHUNK // max(1, pool[:1].numel()))
    for first in range(0, found.ids.numel(), step):
        ids, tokens = (part[first : first + step].to(tensor.device) for part in (found.ids, found.tokens))
        if step == 1:
            yield pool[int(ids[0]), : int(tokens[0])]  # a view, because one page may be larger than a chunk
        else:
            some = torch.arange(pool.shape[1], device=tensor.device) < tokens[:, None]
            yield _bytes(pool).index_select(0, ids)[some].view(tensor.dtype)
