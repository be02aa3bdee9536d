"""Norm, gated activation, rotation and product of a model's layer as torch ops. Each selects a plan for the sizes of its call.

Eager calls run the function directly. Under torch.compile they become `torch.ops.opfacade_transformers.<name>`, so one graph
with symbolic sizes serves all calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import Descriptor
from opfacade.core.device_tensors import DeviceTensors
from opfacade.errors import UnsupportedError
from opfacade.integrations.pass_memo import PassMemo
from opfacade.integrations.tensors import dtype_of, name_of
from opfacade.integrations.transformers.releases import WAY
from opfacade.plans.activation import GatedActivationArgs, GatedActivationDescriptor
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor
from opfacade.plans.norm import NormArgs, NormDescriptor, flashinfer, gemma, huggingface
from opfacade.plans.rotary import RotaryArgs, RotaryDescriptor
from opfacade.programs.fields import Input, Output

KEPT = 1024  # cached descriptors per op: batch sizes and lengths vary, but a model has few other sizes
# The rounding of a norm in transformers, named after its original class.
Rounding = Literal["llama", "gemma", "gpt_oss"]
PRESETS: dict[Rounding, Callable[..., NormDescriptor]] = {"llama": huggingface, "gemma": gemma, "gpt_oss": flashinfer}
_tables: PassMemo[Tensor] = PassMemo()


def _plan(descriptor: Descriptor[Any], like: Tensor) -> Plan[Any]:
    return Plan.select(descriptor, target=Target.cpu() if like.device.type == "cpu" else None)


@lru_cache(maxsize=KEPT)
def norm_descriptor(rounding: Rounding, rows: int, hidden: int, dtypes: tuple[Any, Any], eps: float) -> NormDescriptor:
    return PRESETS[rounding](total_num_rows=rows, hidden=hidden, dtype=dtypes[0], weight_dtype=dtypes[1], eps=eps)


@lru_cache(maxsize=KEPT)
def product_descriptor(count: int, dtype: str, activation: str) -> MapDescriptor:
    """activation(gate) * up with gate and up in separate tensors: the gated activation's program over two inputs."""
    value = GatedActivationDescriptor(total_num_rows=1, width=1, dtype=dtype, activation=activation).program()["out"]
    inputs = (Input(name="gate", dtype=dtype), Input(name="up", dtype=dtype))
    return MapDescriptor(shape=(count,), inputs=inputs, outputs=(Output(name="out", dtype=dtype, value=value),))


@lru_cache(maxsize=KEPT)
def gated_descriptor(
    sizes: tuple[int, int], dtype: str, activation: str, limit: float | None, alpha: float | None
) -> GatedActivationDescriptor:
    """The descriptor for rows that contain gate and up: as two halves, or as pairs for swiglu_oai."""
    fields = {"interleaved": True, "limit": limit, "alpha": alpha} if activation == "swiglu_oai" else {}
    return GatedActivationDescriptor(total_num_rows=sizes[0], width=sizes[1], dtype=dtype, activation=activation, **fields)


@lru_cache(maxsize=KEPT)
def rotary_descriptor(rows: int, heads: tuple[int, int], dim: int, dtype: str, table_dtype: str) -> RotaryDescriptor:
    return RotaryDescriptor(
        total_num_rows=rows, num_qo_heads=heads[0], num_kv_heads=heads[1], head_dim=dim, rotary_dim=dim, dtype=dtype,
        table_dtype=table_dtype, positions="i32", in_place=False,
    )  # fmt: skip


@lru_cache(maxsize=KEPT)
def linear_descriptor(rows: int, sizes: tuple[int, int], dtype: torch.dtype, bias: bool) -> MatmulDescriptor:
    """sizes: n and k, the shape of weight."""
    name: Any = name_of(dtype)
    return MatmulDescriptor(total_num_rows=rows, n=sizes[0], k=sizes[1], dtype=name, bias=bias)


@lru_cache(maxsize=KEPT)
def taken(descriptor: Descriptor[Any], prefer: Preference, device: str) -> bool:
    """Whether a candidate that `prefer` allows accepts the descriptor."""
    try:
        Plan.select(descriptor, prefer, Target.cpu() if device == "cpu" else None)
    except UnsupportedError:
        return False
    return True


@lru_cache(maxsize=64)
def _preference(text: str) -> Preference:
    return Preference.model_validate_json(text)


def norm(x: Tensor, weight: Tensor, eps: float, rounding: Rounding) -> Tensor:
    """The norm of x along its last axis, contiguous, in the dtype of x. weight [hidden]."""
    rows, out = x.reshape(-1, x.shape[-1]), x.new_empty(x.shape)
    dtypes = (dtype_of(WAY, "x", x), dtype_of(WAY, "weight", weight))
    descriptor = norm_descriptor(rounding, rows.shape[0], rows.shape[1], dtypes, eps)
    _plan(descriptor, x).run(NormArgs(x=rows, weight=weight, out=out.view(rows.shape)))
    return out


def product(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up, contiguous. gate, up: tensors with the same shape."""
    out, flat = gate.new_empty(gate.shape), (gate.reshape(-1), up.reshape(-1))
    descriptor = product_descriptor(out.numel(), dtype_of(WAY, "gate", gate), activation)
    _plan(descriptor, gate).run(descriptor.args(gate=flat[0], up=flat[1], out=out.view(-1)))
    return out


def gated(x: Tensor, activation: str, limit: float | None, alpha: float | None) -> Tensor:
    """activation(gate) * up for x [..., 2 * width], whose last axis contains gates, then ups, or for swiglu_oai pairs of
    both."""
    rows = x.reshape(-1, x.shape[-1])
    out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
    sizes = (rows.shape[0], rows.shape[1] // 2)
    descriptor = gated_descriptor(sizes, dtype_of(WAY, "x", x), activation, limit, alpha)
    _plan(descriptor, x).run(GatedActivationArgs(x=rows, out=out.view(sizes)))
    return out


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Rotates q and k [batch, heads, length, dim].

    cos, sin [batch or 1, length, dim / 2], or with dim columns, where the second half repeats the first.
    """
    batch, heads, length, dim = q.shape
    key = (id(cos), id(sin), dim)
    table = _tables.get(SimpleNamespace(layer_idx=layer), (cos, sin), key, lambda: table_of(cos, sin, dim // 2))
    dtypes = (dtype_of(WAY, "query", q), dtype_of(WAY, "cos", cos))
    descriptor = rotary_descriptor(batch * length, (heads, k.shape[1]), dim, *dtypes)
    rows = {"q": q.transpose(1, 2).flatten(0, 1), "k": k.transpose(1, 2).flatten(0, 1)}
    out = {f"{name}_out": x.new_empty(x.shape) for name, x in rows.items()}
    positions = _row_numbers.get(q.device, batch, length, cos.shape[0] == 1)
    _plan(descriptor, q).run(RotaryArgs(**rows, **out, positions=positions, cos_sin_cache=table))
    return tuple(x.view(batch, length, -1, dim).transpose(1, 2) for x in out.values())  # type: ignore[return-value]


def table_of(cos: Tensor, sin: Tensor, half: int) -> Tensor:
    """[batch * length or length, 2 * half]: each row has its cosines, then its sines."""
    return torch.cat((cos[..., :half], sin[..., :half]), -1).flatten(0, 1)


def _positions(device: torch.device, batch: int, length: int, shared: bool) -> Tensor:
    """The row of the table for each row of q; requests with the same positions share theirs."""
    if shared:
        return torch.arange(length, dtype=torch.int32, device=device).repeat(batch)
    return torch.arange(batch * length, dtype=torch.int32, device=device)


_row_numbers = DeviceTensors(_positions)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, prefer: str) -> Tensor:
    """x [..., k] by weight [n, k], plus bias: [..., n]. prefer: a Preference as JSON. torch computes the product if no
    candidate supports the sizes, or if the elements of a weight's row are not contiguous."""
    sizes, made = (weight.shape[0], weight.shape[1]), _preference(prefer)
    rows = x.flatten(0, -2) if x.ndim > 1 else x[None]
    descriptor = linear_descriptor(rows.shape[0], sizes, x.dtype, bias is not None)
    if not _dense(weight) or not taken(descriptor, made, x.device.type):
        return torch.nn.functional.linear(x, weight, bias)
    out = x.new_empty(rows.shape[0], sizes[0])
    plan: Plan[MatmulArgs] = Plan.select(descriptor, made, Target.cpu() if x.device.type == "cpu" else None)
    own = bias if bias is None else bias.contiguous()
    plan.run(MatmulArgs(x=rows if _dense(rows) else rows.contiguous(), weight=weight, bias=own, out=out))
    return out.view(*x.shape[:-1], sizes[0])


def _dense(rows: Tensor) -> bool:
    """Whether the elements of a row are contiguous."""
    return rows.stride(-1) == 1 or rows.shape[-1] < 2


def _like_norm(x: Tensor, *rest: object) -> Tensor:
    return x.new_empty(x.shape)


def _half(x: Tensor, *rest: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


def _columns(x: Tensor, weight: Tensor, *rest: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _like_rotary(q: Tensor, k: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k))


_LIBRARY: Any = torch.library.Library("opfacade_transformers", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMAS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "norm(Tensor x, Tensor weight, float eps, str rounding) -> Tensor": (norm, _like_norm),
    "product(Tensor gate, Tensor up, str activation) -> Tensor": (product, _like_norm),
    "gated(Tensor x, str activation, float? limit, float? alpha) -> Tensor": (gated, _half),
    "linear(Tensor x, Tensor weight, Tensor? bias, str prefer) -> Tensor": (linear, _columns),
    "rotary(Tensor q, Tensor k, Tensor cos, Tensor sin, int layer) -> (Tensor, Tensor)": (rotary, _like_rotary),
}


def _define() -> None:
    for schema, (run, fake) in _SCHEMAS.items():
        name = _LIBRARY.define(schema)
        for device in ("CPU", "CUDA"):
            _LIBRARY.impl(name, run, device)
        torch.library.register_fake(f"opfacade_transformers::{name}", fake, lib=_LIBRARY)


_define()
