"""Random programs of maps and folds: every operation of the language, every dtype, inputs that lack axes or are transposed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from bench import strangers
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.reduction import FoldDescriptor, FoldOutput
from opfacade.programs.expression import Node, apply, constant, coord, extent, scalar, stage, value
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Input, Number, Output
from opfacade.programs.operations import OPERATIONS
from opfacade.programs.stages import REDUCERS, Stage
from opfacade.programs.types import ROUNDED, TYPES, widened

_DTYPES = ("bf16", "f16", "f32", "bf16", "f16", "f32", "f64", "f8_e4m3", "f8_e5m2", "f8_e8m0", *TYPES)
_STEPS = (1, 2, 3, 5, 9, 15, 25, 40)  # operations of a program


def draw(op: str, rng: random.Random) -> Any:
    return _map(rng) if op == "map" else _fold(rng)


def _map(rng: random.Random) -> MapDescriptor:
    rank = rng.randint(1, 4)
    inputs, leaves = _inputs(rank, rng)
    nodes = grown([*leaves, *_places(rank, rng), scalar("s")], rng)
    outputs = [Output(name=f"out_{i}", dtype=_stored(node, rng), value=node) for i, node in enumerate(_roots(nodes, rng))]
    return MapDescriptor(
        shape=strangers.shape(rng, rank), inputs=inputs, scalars=(Number(name="s", value=1.5),), outputs=tuple(outputs),
        num_valid=rng.random() < 0.2,
    )  # fmt: skip


def _fold(rng: random.Random) -> FoldDescriptor:
    rank = rng.randint(1, 3)
    fold = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank)))) if rng.random() < 0.5 else (rank - 1,)
    inputs, nodes = _inputs(rank, rng)
    stages: list[Stage] = []
    for index in range(rng.choice((1, 1, 1, 2, 2, 3))):
        nodes = grown(nodes, rng)
        stages.append(_stage(nodes, rng))
        parts = list(REDUCERS[stages[-1].reducer].parts)
        nodes += [stage(index, stages[-1].part(name), name) for name in parts]
    results = [node for node in nodes if node.kind == "stage"]
    outputs = [_per_row(index, node, (rank, fold), rng) for index, node in enumerate(results[: rng.randint(1, 3)])]
    if rng.random() < 0.6:
        node = _roots(grown(nodes, rng), rng)[0]
        outputs.append(FoldOutput(name="every", dtype=_stored(node, rng), value=node))
    return FoldDescriptor(
        shape=strangers.shape(rng, rank), fold=fold, inputs=inputs, stages=tuple(stages), outputs=tuple(outputs),
        num_valid=rng.random() < 0.15, split=rng.choice(("off", "off", "auto")),
    )  # fmt: skip


def _stage(nodes: Sequence[Node], rng: random.Random) -> Stage:
    names = [name for name, reducer in REDUCERS.items() if any(node.type in reducer.types for node in nodes)]
    reducer: Any = rng.choice(names)
    fitting = [node for node in nodes if node.type in REDUCERS[reducer].types]
    return Stage(reducer=reducer, value=rng.choice(fitting[-6:]))


def _per_row(index: int, node: Node, axes: tuple[int, tuple[int, ...]], rng: random.Random) -> Any:
    rank, fold = axes
    over = tuple(axis for axis in range(rank) if axis not in fold)
    return FoldOutput(name=f"row_{index}", dtype=_stored(node, rng), value=node, over=over)


def _inputs(rank: int, rng: random.Random) -> tuple[tuple[Input, ...], list[Node]]:
    """Inputs, most of one dtype, some of which lack axes."""
    usual, found = rng.choice(_DTYPES), []
    for index in range(rng.choice((1, 1, 2, 2, 3, 5, 8))):
        dtype: Any = usual if rng.random() < 0.7 else rng.choice(_DTYPES)
        over = tuple(axis for axis in range(rank) if rng.random() < 0.6) if rng.random() < 0.3 else None
        found.append(Input(name=f"x{index}", dtype=dtype, over=over))
    return tuple(found), [value(one.name, widened(one.dtype)) for one in found]


def _places(rank: int, rng: random.Random) -> list[Node]:
    return [rng.choice((coord, extent))(rng.randrange(rank))] if rng.random() < 0.2 else []


def grown(leaves: Sequence[Node], rng: random.Random) -> list[Node]:
    """The leaves, and values that are computed from them."""
    nodes = list(leaves)
    for _ in range(rng.choice(_STEPS)):
        nodes.append(_applied(nodes, rng))
    return nodes


def _applied(nodes: Sequence[Node], rng: random.Random) -> Node:
    """One operation, which prefers recent nodes as arguments; a constant if no node has the type."""
    while True:
        name = rng.choice(tuple(OPERATIONS))
        kinds = rng.choice(tuple(OPERATIONS[name].signatures))
        if name == "bits" or not any(node.type == kind for node in nodes for kind in kinds):
            continue
        try:
            return apply(name, *(_of(kind, nodes, rng) for kind in kinds))
        except Fault:
            continue


def _of(kind: Any, nodes: Sequence[Node], rng: random.Random) -> Node:
    fitting = [node for node in nodes if node.type == kind]
    if not fitting or rng.random() < 0.1:
        return constant(rng.choice((True, False)) if kind == "bool" else rng.choice((1, 2, 3)), kind)
    return rng.choice(fitting[-4:]) if rng.random() < 0.7 else rng.choice(fitting)


def _roots(nodes: Sequence[Node], rng: random.Random) -> list[Node]:
    return [nodes[-1], *(rng.choice(nodes) for _ in range(rng.choice((0, 0, 0, 1, 3))))]


def _stored(node: Node, rng: random.Random) -> Any:
    return rng.choice(("f32", "bf16", "f16", *ROUNDED)) if node.type == "f32" else node.type
