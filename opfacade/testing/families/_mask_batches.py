"""Batches of pack_mask. A unit is the mask of one request; its rows are its packed bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from opfacade.plans.mask import PackMaskDescriptor
from opfacade.testing.batches import EMPTY, NEIGHBOURS, Campaign, changed, log_uniform
from opfacade.testing.inputs import make_args

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.testing.subject import Subject

_LONGEST = 3000  # largest number of entries in a mask


@dataclass(frozen=True)
class MaskBatches:
    descriptor: Any
    args: Any
    masks: tuple[Tensor, ...]

    @classmethod
    def drawn(cls, subject: Subject, campaign: Campaign, rng: random.Random) -> MaskBatches:
        """campaign.needles masks, then NEIGHBOURS with unusual bytes; all have equally many entries if segments are even."""
        count, top = campaign.needles + NEIGHBOURS, min(_LONGEST, campaign.longest)
        even = subject.descriptor.segments == "even"
        lengths = [log_uniform(rng, top)] * count if even else [log_uniform(rng, top) for _ in range(count)]
        descriptor = changed(subject.descriptor, batch_size=count, num_bits=sum(lengths))
        args = make_args(descriptor, rng.randrange(2**31), subject.device)
        masks = args.mask.split(lengths)
        for mask in masks[campaign.needles :]:
            mask |= 0x81
        return cls(descriptor, args, tuple(masks))

    def _units(self, order: Sequence[int]) -> list[int]:
        """The order without EMPTY units if all masks have equally many entries."""
        return [unit for unit in order if unit != EMPTY] if self.descriptor.segments == "even" else list(order)

    def batch(self, order: Sequence[int], spare: int = 0) -> tuple[Any, Any]:
        """`spare` is the number of entries after the last request, which belong to no request."""
        import torch

        masks = [self.args.mask[:0] if unit == EMPTY else self.masks[unit] for unit in self._units(order)]
        even = self.descriptor.segments == "even"
        spare = 0 if even else spare
        whole = torch.cat([*masks, self.args.mask.new_full((spare,), 0xFF)])
        problem: Any = changed(self.descriptor, batch_size=len(masks), num_bits=len(whole))
        starts = torch.tensor([0, *accumulate(map(len, masks))], dtype=torch.int32, device=whole.device)
        outs = {
            "packed": whole.new_full((problem.num_bytes,), 0xA5),
            "packed_indptr": starts.new_full((len(masks) + 1,), -7),
        }
        return problem, replace(self.args, mask=whole, bits_indptr=None if even else starts, **outs)

    def rows(self, order: Sequence[int]) -> list[int]:
        starts = [0, *accumulate(map(_bytes, self.masks))]
        return [byte for unit in order if unit != EMPTY for byte in range(starts[unit], starts[unit + 1])]

    def new_rows(self, order: Sequence[int]) -> list[int]:
        return list(range(len(self.rows(order))))

    def by_row(self, descriptor: PackMaskDescriptor, name: str, args: Any) -> Tensor:
        """For `packed_indptr`, the number of bytes of the request to which each byte belongs."""
        if name == "packed":
            return args.packed  # type: ignore[no-any-return]
        ends = args.bits_indptr
        each = descriptor.num_bits // max(1, descriptor.batch_size)
        entries = args.packed_indptr[1:] * 0 + each if ends is None else ends[1:] - ends[:-1]
        sizes = args.packed_indptr[1:] - args.packed_indptr[:-1]
        found: Tensor = sizes.repeat_interleave((entries.long() + 7) // 8)
        return found

    def moved(self, rng: random.Random) -> MaskBatches:
        """Returns this object, because each batch is a copy."""
        return self


def _bytes(mask: Tensor) -> int:
    return (mask.numel() + 7) // 8
