"""Tensors of a program: lists of inputs and outputs, spread over operands with names by place."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MAX_INPUTS, MAX_OUTPUTS, MAX_SCALARS = 8, 4, 16
IN = tuple(f"in_{i}" for i in range(MAX_INPUTS))
OUT = tuple(f"out_{i}" for i in range(MAX_OUTPUTS))


def program_docs(shape: str) -> Mapping[str, str]:
    """Descriptions of the fields of an Args class of programs. shape: words for the shape of an output."""
    return MappingProxyType({
        "inputs": "a list of the inputs, in the order of the descriptor",
        "outputs": "a list of the outputs, in the order of the descriptor",
        **{name: f"set by a list in inputs: input {i}, of the shape less the axes that it lacks" for i, name in enumerate(IN)},
        **{name: f"written; set by a list in outputs: output {i}, of {shape}" for i, name in enumerate(OUT)},
        "num_valid": "int32 [1]: rows of axis 0 at and past it are neither read nor written; with `num_valid`",
    })  # fmt: skip


def spread_lists(args: Any) -> None:
    """A list is spread over its operands; one that is too long stays, and is refused with the call."""
    for name, operands in (("inputs", IN), ("outputs", OUT)):
        given = getattr(args, name)
        if isinstance(given, (list, tuple)) and len(given) <= len(operands):
            object.__setattr__(args, name, None)
            for operand, tensor in zip(operands, given, strict=False):
                object.__setattr__(args, operand, tensor)
