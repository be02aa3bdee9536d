"""A variant and a packed mask for the oracle: parameters of one request, visible keys, and transforms in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opfacade.plans._attention.scoring import Varied
from opfacade.plans._attention.variant import Variant
from opfacade.plans._attention.variant_eval import Place, Stacks, Values, exact, values_of
from opfacade.testing.families.attention.expression_bound import Ball, Roundoff, bound

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Descriptor
    from opfacade.testing.families.attention.call import AttentionCall


def variant_of(descriptor: Descriptor[Any]) -> Variant | None:
    return descriptor.variant if isinstance(descriptor, Varied) else None


def predictable(descriptor: Descriptor[Any]) -> bool:
    """True if weights depend only on q and K, and all heads of a row have the same visible keys."""
    variant = variant_of(descriptor)
    if variant is None:
        return True
    by_head = any(getattr(node, "name", "") in ("head", "kv_head") for _, node in _nodes(variant))
    return variant.logits is None and variant.query is None and not by_head and not variant.parameters("head")


def _nodes(variant: Variant) -> Any:
    return (pair for root in variant.parts().values() for pair in root.walk())


def values(
    descriptor: Descriptor[Any], args: AttentionCall, request: int, place: Place, first: int, keys: tuple[Any, ...]
) -> Values:
    """The values of the names in expressions. first: the first row of the request in q. keys: the positions of its keys."""
    variant = variant_of(descriptor)
    if variant is None:
        return {}
    rows = None if args.row_params is None else args.row_params[:, first : first + place.q_len]
    own = None if args.key_params is None else args.key_params[(slice(None), *keys)]
    return values_of(variant, place, Stacks(args.head_params, rows, own))


def shown(descriptor: Descriptor[Any], args: AttentionCall, request: int, place: Place, known: Values, seen: Tensor) -> Tensor:
    """Combines `seen` [rows, n], which covers the causal mask and the window, with all other masks, for all query heads: [1 or
    kv_heads, rows * group, n]."""
    variant, group = variant_of(descriptor), place.heads // place.kv_heads
    if getattr(descriptor, "custom_mask", False):
        seen = seen & _bits(args, request, place)
    seen = seen.repeat_interleave(group, 0)[None]
    return seen if variant is None or variant.mask is None else seen & exact(variant.mask, known)


def _bits(args: AttentionCall, request: int, place: Place) -> Tensor:
    """The mask [rows, kv_len]: bit i * kv_len + j of the request, least significant bit of a byte first."""
    import torch

    bit = place.rows.long()[:, None] * place.kv_len + torch.arange(place.kv_len, device=place.rows.device)
    byte = args.packed_mask[int(args.mask_indptr[request]) + bit // 8]
    shown: Tensor = (byte.long() >> bit % 8) % 2 == 1
    return shown


def query(descriptor: Descriptor[Any], rows: Tensor, known: Values) -> Tensor:
    """Stored rows of q [kv_heads, rows * group, dim] after the query transform, which is exact."""
    variant = variant_of(descriptor)
    if variant is None or variant.query is None:
        return rows
    return exact(variant.query, known | {"query": rows.float()}).expand(rows.shape).to(rows.dtype)


def logits(
    descriptor: Descriptor[Any], known: Values
) -> Callable[[Tensor, Tensor, dict[str, float]], tuple[Tensor, Tensor]] | None:
    """The function `logits` of `ErrorRow`. Without constants, it only computes the value."""
    variant = variant_of(descriptor)
    if variant is None or variant.logits is None:
        return None
    root = variant.logits

    def transformed(scores: Tensor, eta: Tensor, c: dict[str, float]) -> tuple[Tensor, Tensor]:
        unit = Roundoff(c.get("u", 0.0), c.get("function", 0.0), c.get("line", 0.0))
        found = bound(root, known, Ball(scores, eta), unit)
        return found.v, found.r

    return transformed
