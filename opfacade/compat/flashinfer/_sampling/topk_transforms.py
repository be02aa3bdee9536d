"""FlashInfer's top-k of key scores, translated to slots of a cache. tie_break 2 masks a copy of the scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from opfacade.compat.constants import numbered
from opfacade.compat.flashinfer._sampling.distributions import checked_rows
from opfacade.compat.flashinfer.topk import TopKTieBreak, top_k, top_k_of_windows
from opfacade.compat.refusals import require_tensor, wrong, wrong_shape

_LARGEST_PAGE = 2**30


class _Window(NamedTuple):
    """Row i has the scores starts[i] .. starts[i] + lengths[i] - 1; without starts they begin at 0."""

    lengths: torch.Tensor
    starts: torch.Tensor | None


def top_k_page_table_transform(
    input: torch.Tensor,
    src_page_table: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    row_to_batch: torch.Tensor | None = None,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
    row_starts: torch.Tensor | None = None,
    page_table_row_starts: torch.Tensor | None = None,
    *,
    page_size: int = 1,
    out: torch.Tensor | None = None,
    out_raw_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """Slots `[rows, k]` i32 of the k largest scores in each row's window of input `[rows, max_len]`, -1 after the last one.

    A position p of the window, 0 at row_starts, is in entry page_table_row_starts + p // page_size of the row's page table,
    src_page_table[row_to_batch]; its slot is page * page_size + p % page_size. A window with at most k scores is returned
    whole, in its order. NaN and -inf are ignored. The positions are written to out_raw_indices."""
    op = "top_k_page_table_transform"
    if not 1 <= page_size <= _LARGEST_PAGE or page_size & (page_size - 1):
        raise wrong(op, "page_size", f"a power of two up to {_LARGEST_PAGE}", page_size)
    if page_size > 1 and row_starts is not None and page_table_row_starts is None:
        raise wrong(op, "page_table_row_starts", "a tensor with page_size above 1 and row_starts", None)
    _, width = require_tensor(op, "src_page_table", src_page_table, "batch, max_pages")
    at = _selected(op, input, k, _Window(lengths, row_starts), tie_break)
    first = row_starts if page_table_row_starts is None else page_table_row_starts
    entry = at // page_size + (0 if first is None else first[:, None])
    row = numbered(input.shape[0], input.device) if row_to_batch is None else row_to_batch
    page = src_page_table[row.long()[:, None], entry.clamp(0, max(0, width - 1)).long()]
    found = torch.where(at < 0, -1, page * page_size + at % page_size)
    if out_raw_indices is not None:
        out_raw_indices.copy_(at)
    return found.int() if out is None else out.copy_(found)


def top_k_ragged_transform(
    input: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """As top_k_page_table_transform, but the slot of a position is offsets[row] + position."""
    op = "top_k_ragged_transform"
    require_tensor(op, "offsets", offsets, "rows")
    at = _selected(op, input, k, _Window(lengths, row_starts), tie_break)
    return torch.where(at < 0, -1, at + offsets[:, None]).int()


def _selected(op: str, scores: torch.Tensor, k: int, window: _Window, tie_break: int) -> torch.Tensor:
    """Positions `[rows, k]` i32 in the windows; -1 past the last."""
    rows, width = checked_rows(op, "input", scores).shape
    for name, one in zip(("lengths", "row_starts"), window, strict=True):
        if one is not None and require_tensor(op, name, one, "rows") != (rows,):
            raise wrong_shape(op, name, f"[rows={rows}]", list(one.shape))
    lengths, slot = window.lengths[:, None], numbered(k, scores.device)
    if tie_break == TopKTieBreak.LARGE:
        found = top_k(_masked(scores, window), min(k, width), tie_break=tie_break)[1].int()
    else:
        starts = torch.zeros_like(window.lengths) if window.starts is None else window.starts
        first, end = (x.clamp(0, width).int() for x in (starts, starts + window.lengths))
        found = top_k_of_windows(op, scores, min(k, width), tie_break, (first, end))
    found = found if window.starts is None else torch.where(found < 0, -1, found - window.starts[:, None])
    found = torch.nn.functional.pad(found, (0, k - found.shape[1]), value=-1)
    return torch.where(lengths <= k, torch.where(slot < lengths, slot, -1), found).int()


def _masked(scores: torch.Tensor, window: _Window) -> torch.Tensor:
    place = numbered(scores.shape[1], scores.device)
    place = place if window.starts is None else place - window.starts[:, None]
    return torch.where((place >= 0) & (place < window.lengths[:, None]), scores, -math.inf)
