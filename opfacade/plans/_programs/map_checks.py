"""Checks of the program of a map; each refusal contains the path of the error."""

from __future__ import annotations

from opfacade.programs.expression import Node
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Input, paths, stores, used_names
from opfacade.programs.program import Program
from opfacade.programs.stages import REDUCERS


def check(descriptor: Program) -> None:
    """Raises Fault for the first invalid name, node, output or in-place pair."""
    _check_names(descriptor)
    for i, given in enumerate(descriptor.inputs):
        _check_input(descriptor, f".inputs.{i}", given)
    for path, node in paths(descriptor.values()):
        _check_node(descriptor, f".{path}", node)
    for i, output in enumerate(descriptor.outputs):
        stores(output, f".outputs.{i}")
    _check_in_place(descriptor)


def _check_names(descriptor: Program) -> None:
    names = [
        (f".{kind}.{i}.name", one.name)
        for kind in ("inputs", "scalars", "outputs")
        for i, one in enumerate(getattr(descriptor, kind))
    ]
    seen: set[str] = set()
    for path, name in names:
        if name in seen:
            raise Fault(path, "a unique name", name)
        seen.add(name)
    used = used_names(descriptor.values())
    for path, name in names[: len(descriptor.inputs) + len(descriptor.scalars)]:
        if name not in used:
            raise Fault(path, "a name that an output uses", name)


def _check_input(descriptor: Program, path: str, given: Input) -> None:
    if given.shape is not None:
        if given.over is not None:
            raise Fault(f"{path}.over", "no axes, because the input has its own shape", str(given.over))
        return
    over = given.over or ()
    if list(over) != sorted(set(over)) or any(axis >= len(descriptor.shape) for axis in over):
        raise Fault(f"{path}.over", f"some of the {len(descriptor.shape)} axes of shape, in increasing order", str(over))


def _check_node(descriptor: Program, path: str, node: Node) -> None:
    known = {given.name: given for given in descriptor.inputs}
    if node.kind in ("input", "read"):
        name = node.data[0] if node.kind == "read" else node.data
        _check_use(path, node, known.get(name), name)
    elif node.kind == "scalar":
        types = {number.name: number.type for number in descriptor.scalars}
        if types.get(node.data) != node.type:
            raise Fault(path, f"a scalar {node.data} of type {node.type} in scalars", types.get(node.data, "none"))
    elif node.kind in ("coord", "extent") and node.data >= len(descriptor.shape):
        raise Fault(f"{path}.axis", f"one of the {len(descriptor.shape)} axes of shape", node.data)
    elif node.kind == "stage":
        _check_stage(descriptor, path, node)


def _check_stage(descriptor: Program, path: str, node: Node) -> None:
    """Checks a stage leaf: it must name a result of an earlier stage."""
    stages = getattr(descriptor, "stages", ())
    if not stages:
        raise Fault(path, "no stage, because a map has no reductions", "a stage")
    (index, part), words = node.data, path.split(".")
    known = int(words[2]) if words[1] == "stages" else len(stages)
    if index >= known:
        raise Fault(f"{path}.index", f"one of the {known} earlier stages", index)
    parts = {name: stages[index].part(name) for name in REDUCERS[stages[index].reducer].parts}
    if parts.get(part) != node.type:
        told = " or ".join(f"{name} of type {kind}" for name, kind in parts.items())
        raise Fault(path, f"{told} of stage {index}, {stages[index].reducer}", f"{part} of type {node.type}")


def _check_use(path: str, node: Node, given: Input | None, name: str) -> None:
    if given is None:
        raise Fault(f"{path}.name", "an input of inputs", name)
    if given.type != node.type:
        raise Fault(f"{path}.type", f"{given.type}, the type of {given.dtype} in programs", node.type)
    if node.kind == "input" and given.shape is not None:
        raise Fault(
            path,
            f"{name} read at computed positions, because it has its own shape",
            "the element at the position of the result",
        )
    if node.kind == "read":
        if given.shape is None:
            raise Fault(path, f"a shape for {name}, because it is read at computed positions", "none", "Give inputs a shape.")
        places = len(node.args) - (node.data[1] == "fill")
        if places != len(given.shape):
            raise Fault(f"{path}.at", f"{len(given.shape)} positions, one for each axis of {name}", f"{places}")


def _check_in_place(descriptor: Program) -> None:
    inputs, outputs = {one.name: one for one in descriptor.inputs}, {one.name: one for one in descriptor.outputs}
    if len(set(descriptor.overwritten.values())) < len(descriptor.in_place) or len(descriptor.overwritten) < len(
        descriptor.in_place
    ):
        raise Fault(".in_place", "each output and each input at most once", str(descriptor.in_place))
    for i, (output, given) in enumerate(descriptor.in_place):
        known = inputs.get(given)
        if output not in outputs or known is None:
            raise Fault(f".in_place.{i}", "an output and the input that it overwrites", f"({output}, {given})")
        all_axes = known.over is None or len(known.over) == len(descriptor.shape)
        if known.dtype != outputs[output].dtype or not all_axes or known.shape is not None:
            raise Fault(f".in_place.{i}", f"{given} with the dtype of {output} and all axes", f"({output}, {given})")
