"""The keyword arguments of an attention call: accepted, without effect on attention, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from opfacade.integrations.refusal import refuse
from opfacade.integrations.transformers.releases import WAY

# They concern the model or its loss and do not change attention.
IGNORED = frozenset(
    {
        "position_ids", "use_cache", "num_items_in_batch", "output_hidden_states", "output_router_logits", "return_dict",
        "logits_to_keep", "cache_position", "logits_indices", "logits_processor_args", "deterministic",
    }
)  # fmt: skip
_HINTS = {
    "dropout": "Call model.eval().",
    "output_attentions": "Attention weights are never formed: attn_implementation='eager' has them.",
    "cu_seq_lens_q": "Packed sequences are taken from position_ids, without lengths.",
    "head_mask": "attn_implementation='eager' takes it.",
}


def flag(name: str, value: object) -> bool:
    """A flag, converted by Python's rules. A tensor is refused, because the host would wait for it and a compiled graph would
    break."""
    try:
        found = None if isinstance(value, Tensor) else bool(value)
    except (TypeError, ValueError):  # an array of numpy
        found = None
    if found is None:
        refuse(WAY, "OPF-I001", name, expected="True, False or None", got=type(value).__name__)
    return found


def refuse_unknown(given: Mapping[str, Any], dropout: float = 0.0) -> None:
    """Raises UnsupportedError for the first argument that would change the result. None and False have no effect."""
    for name, value in (("dropout", dropout or None), *given.items()):
        if name not in IGNORED and value is not None and value is not False:
            shown = type(value).__name__ if hasattr(value, "shape") else repr(value)
            hint = _HINTS.get(name, "attn_implementation='eager' may take it.")
            refuse(WAY, "OPF-I001", name, expected="to be absent", got=shown, hint=hint)
