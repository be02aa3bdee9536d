"""Checks of the index tensor of a packed mask: see opfacade.plans._attention.scoring.Varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from opfacade.validation.rules import index_error

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


@runtime_checkable
class Masked(Protocol):
    """Operands of a call that may have a packed mask."""

    @property
    def mask_indptr(self) -> Tensor | None: ...
    @property
    def packed_mask(self) -> Tensor | None: ...


def refuse_short_mask(op: str, args: Args, requests: Sequence[tuple[int, int]]) -> None:
    """Raises if a packed mask lacks a bit for a row and key. requests: (rows, keys) of each."""
    if isinstance(args, Masked) and args.mask_indptr is not None:
        assert args.packed_mask is not None
        check_mask_starts(op, args.mask_indptr.tolist(), requests, args.packed_mask.numel())


def check_mask_starts(op: str, starts: Sequence[int], requests: Sequence[tuple[int, int]], size: int) -> None:
    """mask_indptr must start at 0, leave one bit for each row and key of a request, and stay within packed_mask."""
    if starts[0] != 0:
        raise index_error(op, "mask_indptr", 0, starts[0], "0")
    for request, (rows, keys) in enumerate(requests):
        least = starts[request] + -(-rows * keys // 8)
        if starts[request + 1] < least:
            allowed = f"at least {least}, a bit for each row and key"
            raise index_error(op, "mask_indptr", request + 1, starts[request + 1], allowed, request)
    if starts[-1] > size:
        raise index_error(op, "mask_indptr", len(starts) - 1, starts[-1], f"at most {size}")
