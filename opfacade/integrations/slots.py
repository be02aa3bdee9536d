"""Converts the slots of an engine (page * page_size + token for each new row) to the tables of an append."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from opfacade.errors import IndexDataError, Issue
from opfacade.plans.kv_cache import NOWHERE


class Places(NamedTuple):
    """Destinations of new rows: each row is one request with one page, which receives the row.

    slots: i64 [rows]; a row with a negative slot is not stored. indptr [rows + 1], pages [rows, 1] and lens [rows]: i32.
    """

    slots: Tensor
    indptr: Tensor
    pages: Tensor
    lens: Tensor

    @property
    def table(self) -> dict[str, Tensor]:
        return {"append_indptr": self.indptr, "block_table": self.pages, "kv_lens": self.lens}

    @property
    def bounds(self) -> dict[str, int]:
        rows = self.slots.shape[0]
        return {"batch_size": rows, "total_num_rows": rows, "max_kv_indices": rows}

    def refuse_shared(self, way: str) -> None:
        """Level full: raises IndexDataError if two rows have the same slot. Synchronises."""
        first: dict[int, int] = {}
        for row, slot in enumerate(self.slots.tolist()):
            if slot >= 0 and first.setdefault(slot, row) != row:
                raise _shared(way, row, slot, first[slot])


def places_of(slots: Tensor, page_size: int) -> Places:
    """Computes the tables on the device, without synchronising."""
    rows = slots.shape[0]
    lens = torch.remainder(slots, page_size).add_(1).to(torch.int32)
    page = torch.div(slots, page_size, rounding_mode="floor").masked_fill_(slots < 0, NOWHERE).to(torch.int32)
    return Places(slots, torch.arange(rows + 1, dtype=torch.int32, device=slots.device), page[:, None], lens)


def _shared(way: str, row: int, slot: int, first: int) -> IndexDataError:
    op, code, allowed = f"{way}.attention", "OPF-V002", f"a slot of its own: row {first} also goes there"
    issue = Issue(code, f"slot_mapping[{row}]", allowed, str(slot), kind="IndexDataError")
    error = IndexDataError(f"{op}: {issue}", code=code, op=op, stage="run", issues=[issue])
    error.argument, error.position, error.value, error.limit = "slot_mapping", row, slot, allowed
    return error
