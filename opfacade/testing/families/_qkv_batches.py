"""Batches of qkv_prepare. A unit is one row: the last token of its own request, or its own slot."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.testing.batches import NEIGHBOURS, Batches, DenseBatches, changed
from opfacade.testing.bits import fill
from opfacade.testing.families.attention import oracle

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._rotary.call import RotaryCall
    from opfacade.plans.rotary import QkvPrepareDescriptor
    from opfacade.testing.subject import Subject

_PAGES = 2  # pages per unit


def batches(subject: Subject, needles: int, rng: random.Random) -> Batches:
    """Units in a pool that has exactly the pages of the units, in random order."""
    problem, count = subject.descriptor, needles + NEIGHBOURS
    pool = problem.paged_kv.model_dump() | {"num_total_pages": _PAGES * count}
    more = {} if problem.page_table == "slots" else {"batch_size": count, "max_kv_indices": None}
    grown = changed(problem, paged_kv=pool, total_num_rows=count, **more)
    found = _QkvBatches.drawn(subject.on(grown), "total_num_rows", needles, rng, _resized)
    size, pages = problem.paged_kv.page_size, list(range(_PAGES * count))
    rng.shuffle(pages)
    found.pages = [pages[_PAGES * unit :][:_PAGES] for unit in range(count)]
    found.lengths = [rng.randint(1, _PAGES * size) for _ in range(count)]
    return found


def _resized(problem: QkvPrepareDescriptor, count: int) -> Any:
    more = {} if problem.page_table == "slots" else {"batch_size": count}
    return changed(problem, total_num_rows=count, **more)


class _QkvBatches(DenseBatches):
    pages: list[list[int]]
    lengths: list[int]  # the number of tokens in the request of each unit; the unit is the last token

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, Any]:
        problem, args = super().batch(order, spare)
        pools = {name: fill(getattr(args, name).clone(), math.nan) for name in ("k_data", "v_data")}
        return problem, replace(args, **pools, **self._places(problem, args, self.rows(order)))

    def _places(self, problem: QkvPrepareDescriptor, args: RotaryCall, units: Sequence[int]) -> dict[str, Tensor]:
        import torch

        size, device = problem.paged_kv.page_size, args.q.device
        lengths = [self.lengths[unit] for unit in units]
        used = [self.pages[unit][: -(-self.lengths[unit] // size)] for unit in units]

        def tensor(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        if problem.page_table == "slots":
            ends = zip(used, lengths, strict=True)
            return {"slots": tensor([own[-1] * size + (n - 1) % size for own, n in ends]).long()}
        found = {"append_indptr": tensor(list(range(len(units) + 1)))}
        if problem.page_table == "block":
            table = [self.pages[unit] for unit in units]
            return found | {"block_table": tensor(table).reshape(-1, _PAGES), "kv_lens": tensor(lengths)}
        starts = [0]
        for own in used:
            starts.append(starts[-1] + len(own))
        found |= {"kv_indptr": tensor(starts), "kv_indices": tensor([page for own in used for page in own])}
        return found | {"last_page_len": tensor([(n - 1) % size + 1 for n in lengths])}

    def by_row(self, descriptor: Any, name: str, args: Any) -> Tensor:
        """For a pool: the (page, token) index of each row."""
        if name not in ("k_data", "v_data"):
            return super().by_row(descriptor, name, args)
        size = descriptor.paged_kv.page_size
        if args.slots is not None:
            page, token = args.slots // size, args.slots % size
        elif args.block_table is not None:
            last = args.kv_lens.long() - 1
            page, token = args.block_table.long().gather(1, (last // size)[:, None])[:, 0], last % size
        else:
            page, token = args.kv_indices[args.kv_indptr[1:].long() - 1].long(), args.last_page_len.long() - 1
        return oracle.by_token(getattr(args, name), descriptor)[page, token]
