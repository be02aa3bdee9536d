"""Random folds over the whole language: folded axes, axes of stages and outputs, and expressions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from opfacade.errors import DescriptorError
from opfacade.plans._folds.checks import varying
from opfacade.plans._folds.program import FoldOutput
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs.expression import Node, apply, coord, extent, read, scalar, stage, value
from opfacade.programs.fields import Input, Number, used_names
from opfacade.programs.stages import REDUCERS, Stage
from opfacade.programs.types import widened

_DTYPES = ("f32", "f32", "bf16", "f16", "f64", "i32", "i64", "i8", "u8", "bool")
_STORED = {"f32": ("f32", "bf16", "f16"), "f64": ("f64",)}
_SIZES = (1, 2, 3, 4, 5, 7, 9)
_MOST_ELEMENTS = 600


def drawn(rng: random.Random) -> FoldDescriptor:
    """A valid random fold; draws again if a fold is refused, for example because it takes the maximum of zero elements."""
    while True:
        try:
            return _Draw(rng).fold()
        except DescriptorError:
            continue


class _Draw:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rank = rng.choice((1, 2, 2, 3, 3, 4, 5))
        self.shape = self._shape()
        self.folded = tuple(sorted(rng.sample(range(self.rank), rng.randint(1, self.rank))))
        self.inputs = [self._input(i) for i in range(rng.randint(1, 4))]
        self.leaves: list[Node] = [value(one.name, widened(one.dtype)) for one in self.inputs]
        self.leaves += [extent(rng.randrange(self.rank)), coord(rng.randrange(self.rank)), scalar("a", "f32")]
        self.stages: list[Stage] = []
        if rng.random() < 0.3:
            self._add_read()

    def fold(self) -> FoldDescriptor:
        for _ in range(self.rng.randint(0, 4)):
            self._add_stage()
        outputs = [self._output(i) for i in range(self.rng.randint(1, 3))]
        given: dict[str, Any] = {"shape": self.shape, "fold": self.folded, "inputs": tuple(self.inputs)}
        given |= {"scalars": (Number(name="a", value=0.75),), "stages": tuple(self.stages), "outputs": tuple(outputs)}
        given["in_place"] = self._in_place(outputs)
        given["num_valid"] = 0 not in self.folded and self.rng.random() < 0.2
        used = _names(given)
        given["inputs"] = tuple(one for one in self.inputs if one.name in used)
        given["scalars"] = given["scalars"] if "a" in used else ()
        return FoldDescriptor(**given)

    def _shape(self) -> tuple[int, ...]:
        found: list[int] = []
        for _ in range(self.rank):
            room = _MOST_ELEMENTS
            for size in found:
                room //= max(1, size)
            found.append(self.rng.choice([size for size in _SIZES if size <= max(1, room)]))
        if self.rank == 2 and self.rng.random() < 0.3:
            found[self.rng.randrange(2)] = self.rng.choice((0, 70, 300))
        return tuple(found)

    def _some(self, axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.rng.sample(list(axes), self.rng.randint(0, len(axes))))

    def _input(self, i: int) -> Input:
        dtype: Any = self.rng.choice(_DTYPES)
        over = None if i == 0 or self.rng.random() < 0.4 else tuple(sorted(self._some(range(self.rank))))
        return Input(name=f"x{i}", dtype=dtype, over=over)

    def _add_read(self) -> None:
        self.inputs.append(Input(name="b", dtype="f32", shape=(3,)))
        at = apply("sub", coord(self.rng.randrange(self.rank)), 1)
        self.leaves.append(read("b", "f32", (at,), self.rng.choice(("clamp", "wrap", "reflect"))))

    def _add_stage(self) -> None:
        reducer: Any = self.rng.choice(tuple(REDUCERS))
        kinds = [one for one in REDUCERS[reducer].types if one in ("f32", "f64", "i32", "i64", "bool")]
        axes = None if self.rng.random() < 0.4 else tuple(sorted(self._some(self.folded)))
        made = Stage(reducer=reducer, value=self._value(self.leaves, self.rng.choice(kinds)), axes=axes or None)
        self.stages.append(made)
        index = len(self.stages) - 1
        self.leaves += [stage(index, made.part(part), part) for part in REDUCERS[reducer].parts]

    def _output(self, i: int) -> FoldOutput:
        """A random output over the kept axes and the first folded axes; its value is constant along the other axes."""
        kept = [axis for axis in range(self.rank) if axis not in self.folded]
        first = self.folded[: self.rng.randint(0, len(self.folded))]
        over = [*kept, *first]
        self.rng.shuffle(over)
        missing = set(range(self.rank)) - set(over)
        program = _Known(self.shape, self.folded, self.inputs, self.stages)
        leaves = [leaf for leaf in self.leaves if not varying(program, leaf) & missing]
        kind: Any = self.rng.choice(("f32", "f32", "f64", "i64"))
        dtype: Any = self.rng.choice(_STORED.get(kind, (kind,)))
        whole = not missing and self.rng.random() < 0.6
        return FoldOutput(name=f"y{i}", dtype=dtype, value=self._value(leaves, kind), over=None if whole else tuple(over))

    def _in_place(self, outputs: Sequence[FoldOutput]) -> tuple[tuple[str, str], ...]:
        first = self.inputs[0]
        fits = [made for made in outputs if made.over is None and made.dtype == first.dtype]
        return ((fits[0].name, first.name),) if fits and self.rng.random() < 0.5 else ()

    def _value(self, leaves: Sequence[Node], kind: Any) -> Node:
        """A few leaves, combined by operations of one type; later leaves are more likely."""
        count = self.rng.randint(1, 3)
        chosen = [self.rng.choice(list(leaves)[-4:] if self.rng.random() < 0.5 else list(leaves)) for _ in range(count)]
        terms = [leaf if leaf.type == kind else apply(kind, leaf) for leaf in chosen]
        found = terms[0]
        for term in terms[1:]:
            found = apply(self._operation(kind), found, term)
        return found

    def _operation(self, kind: str) -> str:
        if kind == "bool":
            return self.rng.choice(("and", "or", "xor"))
        return self.rng.choice(("add", "sub", "mul", "maximum", "minimum"))


class _Known:
    """The attributes of a program that `varying` uses."""

    def __init__(self, shape: Sequence[int], fold: tuple[int, ...], inputs: Sequence[Input], stages: Sequence[Stage]) -> None:
        self.shape, self.fold, self.inputs, self.stages = shape, fold, inputs, stages

    def joined(self, stage: Stage) -> tuple[int, ...]:
        return self.fold if stage.axes is None else stage.axes


def _names(given: dict[str, Any]) -> set[str]:
    """The names of inputs and scalars that a value uses."""
    return used_names({str(i): one.value for i, one in enumerate([*given["stages"], *given["outputs"]])})
