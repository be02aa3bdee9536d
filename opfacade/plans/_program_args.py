"""Tensors of a program: lists of inputs and outputs, spread over operands with names by place."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from opfacade.core.tensor_lists import elements

MAX_INPUTS, MAX_OUTPUTS, MAX_SCALARS = 8, 4, 16
IN, OUT = elements("in", MAX_INPUTS), elements("out", MAX_OUTPUTS)
LISTS = MappingProxyType({"inputs": IN, "outputs": OUT})


def program_docs(shape: str) -> Mapping[str, str]:
    """Descriptions of the fields of an Args class of programs. shape: words for the shape of an output."""
    return MappingProxyType({
        "inputs": "a list of the inputs, in the order of the descriptor",
        "outputs": "a list of the outputs, in the order of the descriptor",
        **{name: f"set by a list in inputs: input {i}, of the shape less the axes that it lacks" for i, name in enumerate(IN)},
        **{name: f"written; set by a list in outputs: output {i}, of {shape}" for i, name in enumerate(OUT)},
        "num_valid": "int32 [1]: rows of axis 0 at and past it are neither read nor written; with `num_valid`",
        "indptr": "row i of axis 0 is indptr[i] .. indptr[i + 1] - 1 of axis 1; with `ragged`",
    })  # fmt: skip
