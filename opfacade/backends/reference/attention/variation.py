"""A variant and a packed mask in one request of a call, as the softmax in torch uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opfacade.plans._attention.packed_mask import Masked, check_mask_starts
from opfacade.plans._attention.scoring import Varied
from opfacade.plans._attention.variant import Variant
from opfacade.plans._attention.variant_eval import Place, Stacks, Values, exact, inexact, values_of

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args, Descriptor


@dataclass(frozen=True, slots=True)
class Variation:
    """stacks: the parameters of the request. mask [q_len, kv_len]: the unpacked mask, or None."""

    variant: Variant | None
    stacks: Stacks
    mask: Tensor | None

    def values(self, place: Place) -> Values:
        return {} if self.variant is None else values_of(self.variant, place, self.stacks)

    def query(self, rows: Tensor, values: Values) -> Tensor:
        """Rows of q [kv_heads, rows, dim], transformed by the query expression, in their own dtype."""
        if self.variant is None or self.variant.query is None:
            return rows
        changed = exact(self.variant.query, values | {"query": rows.float()})
        return changed.expand(rows.shape).to(rows.dtype)

    def scores(self, scores: Tensor, values: Values) -> Tensor:
        if self.variant is None or self.variant.logits is None:
            return scores
        return inexact(self.variant.logits, values | {"score": scores}, scores.dtype).expand(scores.shape).contiguous()

    def seen(self, seen: Tensor, place: Place, values: Values) -> Tensor:
        """`seen` [1, rows * group, keys] combined with the mask and the variant, for all KV heads together or for each."""
        if self.mask is not None:
            seen = seen & self.mask[place.rows].repeat_interleave(place.heads // place.kv_heads, 0)
        return seen if self.variant is None or self.variant.mask is None else seen & exact(self.variant.mask, values)


PLAIN = Variation(None, Stacks(), None)


def of_request(
    descriptor: Descriptor[Any], args: Args, rows: slice, at: tuple[Any, ...], kv_len: int, mask_start: int
) -> Variation:
    """Variant and mask operands of one request. at: positions of its keys in an operand laid out like K."""
    if not isinstance(descriptor, Varied):
        return PLAIN
    stacks = Stacks(
        args.head_params,
        None if args.row_params is None else args.row_params[:, rows],
        None if args.key_params is None else args.key_params[(slice(None), *at)],
    )
    mask = unpacked(args.packed_mask, mask_start, rows.stop - rows.start, kv_len) if descriptor.custom_mask else None
    return Variation(descriptor.variant, stacks, mask)


def unpacked(packed: Tensor, start: int, q_len: int, kv_len: int) -> Tensor:
    """The mask [q_len, kv_len] from the bits that begin at byte `start`, least significant bit first."""
    import torch

    count = q_len * kv_len
    own = packed[start : start + -(-count // 8)]
    bits = own[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    return bits.flatten()[:count].view(q_len, kv_len).bool()


def mask_starts(op: str, args: Args, q_indptr: Sequence[int], kv_lens: Sequence[int]) -> list[int]:
    """mask_indptr as a checked list; zeros without a mask."""
    if not isinstance(args, Masked) or args.mask_indptr is None or args.packed_mask is None:
        return [0] * (len(kv_lens) + 1)
    starts: list[int] = args.mask_indptr.tolist()
    q_lens = [b - a for a, b in pairwise(q_indptr)]
    check_mask_starts(op, starts, list(zip(q_lens, kv_lens, strict=True)), args.packed_mask.numel())
    return starts
