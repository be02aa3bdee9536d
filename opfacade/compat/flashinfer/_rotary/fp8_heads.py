"""Heads in fp8: rotated or unchanged, multiplied by a number, in one launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from opfacade.compat.dtypes import float_name, fp8_name
from opfacade.compat.refusals import require_tensor, wrong_shape
from opfacade.compat.selecting import plan_for
from opfacade.plans.elementwise import MapArgs, MapDescriptor
from opfacade.plans.rotary import RotaryDescriptor
from opfacade.programs.fields import Input, Number, Output
from opfacade.programs.words import scalar, value


class Rotation(NamedTuple):
    """The angles of a call: cos_sin_cache [max_positions, rotary_dim] and positions [rows]."""

    op: str
    table: torch.Tensor
    positions: torch.Tensor
    interleaved: bool

    def facts(self, dim: int) -> tuple[Any, ...]:
        """The parameters of heads whose `dim` elements are all rotated."""
        entries, width = require_tensor(self.op, "cos_sin_cache", self.table, "max_positions, rope_dim")
        require_tensor(self.op, "pos_ids", self.positions, "nnz")
        if width != dim:
            raise wrong_shape(self.op, "cos_sin_cache", f"[max_positions, rope_dim={dim}]", [entries, width])
        return (entries, float_name(self.op, "cos_sin_cache", self.table), self.interleaved)


def scaled(op: str, x: torch.Tensor, out: torch.Tensor, factor: float, rotation: Rotation | None = None) -> torch.Tensor:
    """Writes x `[rows, heads, dim]` or `[rows, dim]`, rotated if there is a rotation and multiplied by factor, to out, and
    returns out."""
    if out.shape != x.shape:
        raise wrong_shape(op, "an output", str(list(x.shape)), list(out.shape))
    heads, made = (one.unsqueeze(1) if one.dim() == 2 else one for one in (x, out))
    shape = require_tensor(op, "an input", heads, "nnz, num_heads, dim")
    dtypes = (float_name(op, "an input", x), fp8_name(op, "an output", out))
    angles = None if rotation is None else rotation.facts(shape[2])
    plan = plan_for(_map, (shape, dtypes, float(factor), angles), x.device)
    more = () if rotation is None else (rotation.positions.long()[None], rotation.table)
    plan.run(MapArgs(inputs=(heads, *more), outputs=(made,)))
    return out


def _map(facts: Any) -> MapDescriptor:
    shape, (dtype, made), factor, angles = facts
    numbers = (Number(name="factor", value=factor),)
    inputs, element = ((Input(name="x", dtype=dtype),), value("x", "f32")) if angles is None else _rotated(shape, dtype, angles)
    outputs = (Output(name="out", dtype=made, value=element * scalar("factor")),)
    return MapDescriptor(shape=shape, inputs=inputs, scalars=numbers, outputs=outputs)


def _rotated(shape: tuple[int, int, int], dtype: object, angles: tuple[Any, ...]) -> tuple[tuple[Input, ...], Any]:
    """The inputs of a rotation and the value of an element, before it is rounded."""
    (rows, heads, dim), (entries, table, interleaved) = shape, angles
    rotary = RotaryDescriptor(
        total_num_rows=rows, num_qo_heads=max(heads, 1), num_kv_heads=0, head_dim=dim, rotary_dim=dim, dtype=dtype,
        interleaved=interleaved,
    )  # fmt: skip
    inputs = (
        Input(name="x", dtype=dtype, shape=shape),
        Input(name="positions", dtype="i64", shape=(1, rows)),
        Input(name="table", dtype=table, shape=(entries, dim)),
    )
    return inputs, rotary.program()["out"]
