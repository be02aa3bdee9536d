"""Harness of mask packing: every byte and every start must be exact."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from opfacade.core.descriptor import operands_of
from opfacade.plans.mask import PackMaskDescriptor
from opfacade.testing.batches import Batches, Campaign
from opfacade.testing.bounds import Bounded
from opfacade.testing.families._mask_batches import MaskBatches
from opfacade.testing.families._request_inputs import indptr, split_total
from opfacade.testing.harness import Harness
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from opfacade.testing.subject import Subject


class PackMaskHarness(Harness):
    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        batch, each = rng.randint(0, 40), rng.randint(0, min(3000, 8 * tokens))
        segments = rng.choice(("indptr", "even"))
        return PackMaskDescriptor(
            batch_size=batch, num_bits=batch * each, segments=segments, bit_order=rng.choice(("little", "big"))
        )

    def inputs(self, draw: Draw) -> None:
        if "bits_indptr" in operands_of(draw.descriptor):
            counts = split_total(draw.rng, draw.descriptor.num_bits, draw.descriptor.batch_size)
            draw.values["bits_indptr"] = indptr(draw, counts)

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        return MaskBatches.drawn(subject, campaign, rng)

    def expected(self, descriptor: PackMaskDescriptor, args: Any, c: dict[str, float]) -> list[Bounded]:
        mask = args.mask.cpu().numpy() != 0
        each = descriptor.num_bits // max(1, descriptor.batch_size)
        indptr = np.arange(descriptor.batch_size + 1) * each if args.bits_indptr is None else args.bits_indptr.cpu().numpy()
        parts = [np.packbits(mask[a:b], bitorder=descriptor.bit_order) for a, b in pairwise(indptr)]
        packed = np.concatenate([*parts, np.zeros(descriptor.num_bytes - sum(map(len, parts)), np.uint8)])
        starts = np.cumsum([0, *map(len, parts)])
        return [_exact("packed", packed, args.packed), _exact("packed_indptr", starts, args.packed_indptr)]


def _exact(name: str, want: Any, like: Any) -> Bounded:
    import torch

    value = torch.from_numpy(want.astype(np.float64)).to(like.device)
    return Bounded(name, value, torch.zeros_like(value), torch.zeros_like(value))


HARNESSES: dict[str, Harness] = {"pack_mask": PackMaskHarness()}
