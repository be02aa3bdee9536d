"""experts_implementation="opfacade": the experts of a layer as one plan, with the ids and weights from the layer's router."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from opfacade.integrations.refusal import refuse
from opfacade.integrations.tensors import described, takes
from opfacade.integrations.transformers import expert_op
from opfacade.integrations.transformers.known_layers import ACTIVATIONS, gate_of
from opfacade.integrations.transformers.releases import WAY
from opfacade.integrations.transformers.standard import autocast

PART = "experts"


class _Weights(NamedTuple):
    up: Tensor
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


def experts(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The weighted sum of the chosen experts' results for each row, in order of the choices, in the dtype of hidden_states.

    hidden_states [rows, hidden]; top_k_index, top_k_weights [rows, k]. Ids of num_experts or above are skipped: with expert
    parallelism, they belong to other ranks. Under torch.autocast, rows are first cast to its dtype; weights already have it.
    Raises UnsupportedError for experts whose arithmetic is unknown (OPF-I001), DTypeError for tensors that no plan supports
    (OPF-I003), GradNotSupportedError if a tensor requires a gradient (OPF-I007).
    """
    weights = _weights(self)
    rows = autocast(hidden_states)
    _check(rows, top_k_weights, weights)
    form, limit, alpha = _form(self)
    ids = torch.where(top_k_index < weights.up.shape[0], top_k_index, -1).to(torch.int32)
    given = (rows, ids, top_k_weights.float(), *weights)
    run = torch.ops.opfacade_transformers.experts if torch.compiler.is_compiling() else expert_op.experts
    found: Tensor = run(*given, form, limit, alpha, bool(_field(self, "is_transposed")))
    return found.to(hidden_states.dtype)


def _field(module: nn.Module, name: str) -> Any:
    return getattr(module, name, False)


def _weights(module: nn.Module) -> _Weights:
    up, biased = "gate_up_proj" if _field(module, "has_gate") else "up_proj", _field(module, "has_bias")
    biases = [getattr(module, f"{name}_bias") if biased else None for name in (up, "down_proj")]
    return _Weights(getattr(module, up), biases[0], _field(module, "down_proj"), biases[1])


def _check(rows: Tensor, chosen: Tensor, weights: _Weights) -> None:
    named = {"hidden_states": rows, **{name: one for name, one in weights._asdict().items() if one is not None}}
    for name, tensor in named.items():
        if not takes(tensor):
            got = described(tensor)
            refuse(WAY, "OPF-I003", name, expected="a plain tensor of f16, bf16 or f32 on cpu or cuda", got=got, part=PART)
        if tensor.dtype != rows.dtype and not name.endswith("bias"):
            expected = f"{rows.dtype}, that of hidden_states"
            refuse(WAY, "OPF-I003", name, expected=expected, got=tensor.dtype, hint="Load the model in one dtype.", part=PART)
    if torch.is_grad_enabled() and any(one.requires_grad for one in (*named.values(), chosen)):
        hint = "Call the model under torch.no_grad(), or train with experts_implementation='grouped_mm'."
        expected, got = "tensors without gradients", "requires_grad=True"
        refuse(WAY, "OPF-I007", "hidden_states, weights", expected=expected, got=got, hint=hint, part=PART)


def _form(module: nn.Module) -> tuple[str, float | None, float | None]:
    """The name of a form in `expert_op.FORMS`, with its activation, limit and alpha."""
    if _field(module, "has_post_expert_norm"):
        refuse(WAY, "OPF-I001", "has_post_expert_norm", expected="False", got="a norm behind each expert", part=PART)
    form, reason = _known(type(module), type(_field(module, "act_fn")), bool(_field(module, "has_gate")))
    if reason:
        refuse(WAY, "OPF-I001", "experts", expected="a gate that is known", got=reason, part=PART)
    numbers = (float(_field(module, "limit")), float(_field(module, "alpha"))) if form == "pairs" else (None, None)
    return form, *numbers


def _known(kind: type, activation: type, gated: bool) -> tuple[str, str]:
    """The form of a class of experts, or the reason why there is none. torch.compile treats the result as a constant."""
    return _compared(kind, activation, gated)


_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def _compared(kind: type, activation: type, gated: bool) -> tuple[str, str]:
    gate = gate_of(kind) if gated else "none"
    if gate == "pairs":
        return "pairs", ""
    if gate is None:
        return "", f"the _apply_gate of {kind.__name__}, which is none of those that are known"
    if activation.__name__ not in ACTIVATIONS:
        return "", f"act_fn {activation.__name__}, which is none of {', '.join(ACTIVATIONS)}"
    return f"{gate}/{ACTIVATIONS[activation.__name__]}", ""
