"""Rotations of q and k for FlashInfer's calls, with the caller's table or with angles that are computed on the device for any
positions. Angles are f64 products, and their cosines and sines are rounded to f32 once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from opfacade.compat.constants import numbered
from opfacade.compat.dtypes import float_name
from opfacade.compat.flashinfer.page import get_batch_indices_positions
from opfacade.compat.refusals import require_tensor, truth, wrong, wrong_shape
from opfacade.compat.selecting import plan_for
from opfacade.core.device_tensors import DeviceTensors
from opfacade.plans.elementwise import MapArgs, MapDescriptor
from opfacade.plans.rotary import Kind, RotaryArgs, RotaryDescriptor, rotary_frequencies
from opfacade.programs.fields import Input, Output
from opfacade.programs.words import apply, cos, sin, value

_INDICES = {torch.int32: "i32", torch.int64: "i64"}
Heads = tuple[torch.Tensor, torch.Tensor]


class Waves(NamedTuple):
    """The frequencies of pairs, as in `rotary_frequencies`."""

    kind: Kind
    base: float
    scaling: tuple[tuple[str, float], ...]


class Angles(NamedTuple):
    """rows [nnz]: the row of table [entries, rotary_dim] for each row of q and k; with a negative one, the row is not
    changed."""

    rows: torch.Tensor
    table: torch.Tensor


def angles_at(op: str, positions: torch.Tensor, rotary_dim: int, waves: Waves) -> Angles:
    """The angles of positions [rows], in one launch."""
    (rows,) = require_tensor(op, "pos_ids", positions, "nnz")
    if rotary_dim < 2 or rotary_dim % 2:
        raise wrong(op, "rotary_dim", "an even number, at least 2", rotary_dim)
    plan = plan_for(_table, (rows, rotary_dim // 2, _index_name(op, "pos_ids", positions)), positions.device)
    table = torch.empty(rows, rotary_dim, dtype=torch.float32, device=positions.device)
    frequencies = _all_frequencies.get(positions.device, rotary_dim, waves)
    plan.run(MapArgs(inputs=(positions, frequencies), outputs=table.chunk(2, 1)))
    return Angles(numbered(rows, positions.device), table)


def angles_of_requests(op: str, tables: tuple[torch.Tensor, torch.Tensor], rows: int, rotary_dim: int, waves: Waves) -> Angles:
    """The angles of consecutive rows: tables are indptr [batch + 1] and offsets [batch], the position of a request's first row.
    Rows past the last entry of indptr are not changed."""
    indptr, offsets = tables
    (entries,) = require_tensor(op, "indptr", indptr, "batch + 1")
    if require_tensor(op, "offsets", offsets, "batch") != (entries - 1,):
        raise wrong_shape(op, "offsets", f"[batch={entries - 1}]", list(offsets.shape))
    for name, x in zip(("indptr", "offsets"), tables, strict=True):
        _index_name(op, name, x)
    if offsets.device != indptr.device:
        raise wrong(op, "offsets", f"the device of indptr, {indptr.device}", offsets.device)
    request, positions = get_batch_indices_positions(indptr, offsets + indptr.diff(), rows)
    found = angles_at(op, positions, rotary_dim, waves)
    return found._replace(rows=torch.where(request < 0, -1, found.rows))


def rotated(op: str, heads: Heads, out: Heads | None, angles: Angles, interleaved: bool) -> None:
    """heads: q and k [rows, heads, head_dim], which are overwritten, or only read if out is given."""
    q, k = heads
    rows, qo_heads, dim = require_tensor(op, "q", q, "nnz, num_qo_heads, head_dim")
    _, kv_heads, _ = require_tensor(op, "k", k, "nnz, num_kv_heads, head_dim")
    _, rotary_dim = require_tensor(op, "cos_sin_cache", angles.table, "max_positions, rotary_dim")
    require_tensor(op, "positions", angles.rows, "nnz")
    names = float_name(op, "q", q), float_name(op, "cos_sin_cache", angles.table), _index_name(op, "positions", angles.rows)
    plan = plan_for(
        _rotary,
        ((rows, qo_heads, kv_heads, dim, rotary_dim), names, (truth(op, "interleave", interleaved), out is None)),
        q.device,
    )
    outputs = {} if out is None else {"q_out": out[0], "k_out": out[1]}
    plan.run(RotaryArgs(q=q, k=k, positions=angles.rows, cos_sin_cache=angles.table, **outputs))


def _index_name(op: str, argument: str, x: torch.Tensor) -> str:
    name = _INDICES.get(x.dtype)
    if name is None:
        raise wrong(op, argument, "dtype int32 or int64", x.dtype)
    return name


def _frequencies(device: torch.device, rotary_dim: int, waves: Waves) -> torch.Tensor:
    """f64 [rotary_dim / 2]. A capture cannot copy from the host, so an earlier call must create the tensor."""
    found, _ = rotary_frequencies(waves.kind, rotary_dim=rotary_dim, base=waves.base, **dict(waves.scaling))
    return found.to(device)


_all_frequencies = DeviceTensors(_frequencies, lasting=True)


def _table(facts: Any) -> MapDescriptor:
    rows, pairs, index = facts
    angle = apply("f64", value("position", index)) * value("frequency", "f64")
    inputs = (Input(name="position", dtype=index, over=(0,)), Input(name="frequency", dtype="f64", over=(1,)))
    made = {"cos": cos(angle), "sin": sin(angle)}
    outputs = tuple(Output(name=name, dtype="f32", value=apply("f32", one)) for name, one in made.items())
    return MapDescriptor(shape=(rows, pairs), inputs=inputs, outputs=outputs)


def _rotary(facts: Any) -> RotaryDescriptor:
    (rows, qo_heads, kv_heads, dim, rotary_dim), (dtype, table, index), (interleaved, in_place) = facts
    return RotaryDescriptor(
        total_num_rows=rows, num_qo_heads=qo_heads, num_kv_heads=kv_heads, head_dim=dim, rotary_dim=rotary_dim,
        dtype=dtype, table_dtype=table, positions=index, interleaved=interleaved, in_place=in_place,
    )  # fmt: skip
