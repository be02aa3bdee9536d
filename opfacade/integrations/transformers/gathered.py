"""Continuous batching of transformers 5.19 and later: its cache gathers the keys of all requests before the call.

The same function serves calls of model.forward, which pass no lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opfacade.integrations.refusal import refuse
from opfacade.integrations.transformers.arguments import refuse_unknown
from opfacade.integrations.transformers.packed_rows import Rows, attend_rows
from opfacade.integrations.transformers.problem import check_tensors, scores
from opfacade.integrations.transformers.releases import WAY
from opfacade.integrations.transformers.standard import attention

if TYPE_CHECKING:
    from opfacade.integrations.transformers.parts import WithLayer

_TAKEN = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_CONSUMED = ("read_index", "write_index", "cache", "is_causal")  # arguments that the cache has already used


@torch.compiler.disable  # type: ignore[untyped-decorator]
def gathered_attention(
    module: WithLayer, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """query [1, heads, rows, dim]; key and value [1, kv_heads, kv_rows, dim], of all requests, one after the other. Returns o
    [1, rows, heads, dim of value]. A call without read_index comes from model.forward.

    Raises UnsupportedError for an unsupported argument.
    """
    named: dict[str, Any] = {"sliding_window": sliding_window, "softcap": softcap, "s_aux": s_aux}
    if kwargs.get("read_index") is None:
        found: tuple[Tensor, None] = attention(module, query, key, value, attention_mask, dropout, scaling, **named, **kwargs)
        return found
    if attention_mask is not None:
        refuse(WAY, "OPF-I001", "attention_mask", expected="None", got="a mask", hint="Lengths hold the whole mask.")
    cu_q, cu_k, max_q, max_k = (kwargs.pop(name) for name in _TAKEN)
    refuse_unknown({name: value for name, value in kwargs.items() if name not in _CONSUMED}, dropout)
    check_tensors(query, key, value)
    rows = Rows(*(x[0].transpose(0, 1) for x in (query, key, value)))
    how = scores(scaling, softcap, s_aux, sliding_window)
    return attend_rows(rows, (cu_q, cu_k), how, (max_q, max_k))[None], None
