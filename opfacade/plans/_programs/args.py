"""Tensors of a program: lists of inputs and outputs, which become operands named by their position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from opfacade.base.did_you_mean import did_you_mean
from opfacade.core.tensor_lists import TensorList, elements
from opfacade.errors import Issue, from_issues
from opfacade.programs.program import Program

MAX_INPUTS, MAX_OUTPUTS, MAX_SCALARS = 8, 4, 16
IN, OUT = elements("in", MAX_INPUTS), elements("out", MAX_OUTPUTS)
LISTS = MappingProxyType({"inputs": TensorList(IN), "outputs": TensorList(OUT)})


def by_operand(descriptor: Program, tensors: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """The tensors of a call by operand; None if a tensor is missing. Raises ArgumentTypeError for an unknown name. others:
    names of further operands, for the message."""
    operand = {one.name: name for one, name in zip(descriptor.inputs, IN, strict=False)}
    operand |= {one.name: name for one, name in zip(descriptor.outputs, OUT, strict=False)}
    known = [*operand, *others]
    hint = f"Names: {', '.join(known)}."
    issues = [
        Issue("OPF-A060", name, "no argument with this name", "one", f"{did_you_mean(name, known)} {hint}".lstrip(),
              kind="ArgumentTypeError")
        for name in tensors if name not in operand
    ]  # fmt: skip
    if issues:
        raise from_issues(descriptor.op, "args", issues)
    return {name: tensors.get(one) for one, name in operand.items()}


def program_docs(shape: str) -> Mapping[str, str]:
    """Descriptions of the fields of an Args class for programs. shape: the description of the shape of an output."""
    return MappingProxyType({
        "inputs": "a list of the inputs, in the order of the descriptor",
        "outputs": "a list of the outputs, in the order of the descriptor",
        **{name: f"set by a list in inputs: input {i}, of the shape less the axes that it lacks" for i, name in enumerate(IN)},
        **{name: f"written; set by a list in outputs: output {i}, of {shape}" for i, name in enumerate(OUT)},
        "num_valid": "int32 [1]: the number of valid rows of axis 0; later ones are neither read nor written; with `num_valid`",
        "indptr": "row i consists of indptr[i] to indptr[i + 1] - 1 of axis 1; with `ragged`",
    })  # fmt: skip
