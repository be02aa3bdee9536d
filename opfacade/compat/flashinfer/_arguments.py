"""The permitted values of FlashInfer's arguments, and the arguments without effect. Other values are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from opfacade.compat.dtypes import as_dtype
from opfacade.compat.refusals import (
    number,
    refuse_unless,
    require_dense,
    require_integer,
    truth,
    unlike_plan,
    unmapped,
    wrong,
    wrong_shape,
)
from opfacade.compat.scores import Scores

LAYOUTS = ("NHD", "HND")


class How(NamedTuple):
    """The arguments of plan() except its tables. packed: a mask replaces causal."""

    scores: Scores
    sm_scale: float | None
    kv_split: str | int
    q_dtype: torch.dtype | None
    kv_dtype: torch.dtype | None
    o_dtype: torch.dtype | None


def how_of(op: str, arguments: Mapping[str, Any], page_size: int = 1) -> How:
    """The options from plan()'s arguments, by name. Raises an error that names the first argument without an equivalent."""
    refuse_unless(op, {name: (arguments.get(name), None) for name in _UNKNOWN})
    q_dtype, kv_dtype, o_dtype = (as_dtype(op, name, arguments.get(name)) for name in _DTYPES)
    kv_dtype = kv_dtype or as_dtype(op, "data_type", arguments.get("data_type")) or q_dtype
    scale = arguments.get("sm_scale")
    split = _split(
        op, arguments.get("fixed_split_size"), truth(op, "disable_split_kv", arguments.get("disable_split_kv")), page_size
    )
    scale = None if scale is None else number(op, "sm_scale", scale)
    return How(scores_of(op, arguments), scale, split, q_dtype, kv_dtype, o_dtype or q_dtype)


_DTYPES = ("q_data_type", "kv_data_type", "o_data_type")
# Multi-item scoring, and indptrs of V and O that differ from those of K and Q.
_UNKNOWN = ("prefix_len_ptr", "token_pos_in_items_ptr", "max_item_len_ptr", "v_indptr", "o_indptr")


def scores_of(op: str, arguments: Mapping[str, Any]) -> Scores:
    mode, window = arguments.get("pos_encoding_mode", "NONE"), arguments.get("window_left")
    cap = arguments.get("logits_soft_cap")
    if not isinstance(mode, str) or mode not in ("NONE", "ALIBI"):
        hint = "Rotate Q and K before: append rotates K on its way into the cache."
        raise unmapped(op, "pos_encoding_mode", "'NONE' or 'ALIBI'", repr(mode), hint)
    return Scores(
        causal=truth(op, "causal", arguments.get("causal")),
        window_left=-1 if window is None else require_integer(op, "window_left", window),
        soft_cap=number(op, "logits_soft_cap", 0.0 if cap is None else cap),
        bias="from_row" if mode == "ALIBI" else "none",
    )


def _split(op: str, fixed: int | None, disabled: bool, page_size: int) -> str | int:
    """fixed: the number of pages per chunk; kv_split counts tokens."""
    if disabled:
        return "off"
    pages = -1 if fixed is None else require_integer(op, "fixed_split_size", fixed)
    if pages == -1:
        return "auto"
    if pages < 1:
        raise wrong(op, "fixed_split_size", "at least 1", fixed)
    return pages * page_size


def require_sizes(op: str, arguments: Mapping[str, Any], *names: str) -> None:
    """Requires non-negative 32-bit integers; page_size must be at least 1."""
    for name in names:
        least = 1 if name == "page_size" else 0
        if not least <= require_integer(op, name, arguments[name]) < 2**31:
            raise wrong(op, name, f"{least} to 2^31 - 1", arguments[name])


def layout_of(op: str, kv_layout: str) -> str:
    if not isinstance(kv_layout, str) or kv_layout not in LAYOUTS:
        raise wrong(op, "kv_layout", "'NHD' or 'HND'", repr(kv_layout))
    return kv_layout


def require_dtype(op: str, argument: str, planned: torch.dtype | None, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        require_dense(op, argument, tensor, "...")
    if planned is not None and tensor.dtype != planned:
        raise unlike_plan(op, argument, planned, tensor.dtype)


def require_query(op: str, q: torch.Tensor, heads: int, dim: int) -> None:
    if q.dim() != 3 or tuple(q.shape[1:]) != (heads, dim):
        raise wrong_shape(op, "q", f"[rows, num_qo_heads={heads}, head_dim={dim}], as passed to plan()", list(q.shape))


def refuse_run_arguments(op: str, args: tuple[Any, ...], arguments: Mapping[str, Any]) -> None:
    """args: positional arguments for a user-defined kernel."""
    if args:
        raise unmapped(
            op, "args", "no further positional arguments", f"{len(args)}", "Use a variant instead of your own kernel."
        )
    neutral = {
        "kv_cache_sf": None,
        "skip_softmax_threshold_scale_factor": None,
        "o_scale": 1.0,
        "use_fp16_softmax": False,
        "uses_spcompress": False,
        "profiler_buffer": None,
    }
    refuse_unless(op, {name: (arguments.get(name), value) for name, value in neutral.items()})
