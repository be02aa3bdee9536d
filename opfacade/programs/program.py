"""Program and Fold: protocols of descriptors with a program, for checks, evaluation and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import Self

from opfacade.core.descriptor import Args
from opfacade.programs.expression import Node
from opfacade.programs.fields import FoldOutput, Input, Number, Output
from opfacade.programs.stages import Stage

if TYPE_CHECKING:
    from torch import Tensor


class Program(Protocol):
    """A program that computes elements over axes."""

    @property
    def op(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def inputs(self) -> tuple[Input, ...]: ...
    @property
    def scalars(self) -> tuple[Number, ...]: ...
    @property
    def outputs(self) -> tuple[Output, ...]: ...
    @property
    def in_place(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def overwritten(self) -> dict[str, str]:
        """Outputs in place, with the inputs that they overwrite."""

    def values(self) -> dict[str, Node]:
        """The expressions by the path of their field."""

    def written(self, args: Args) -> list[Tensor]:
        """The output tensors of a call, in order."""


class Staged(Protocol):
    """The part of a fold that determines along which axes its values may vary."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def inputs(self) -> Sequence[Input]: ...
    @property
    def stages(self) -> Sequence[Stage]: ...
    def joined(self, stage: Stage) -> tuple[int, ...]: ...


class Fold(Program, Protocol):
    """A program whose stages join values along axes."""

    @property
    def fold(self) -> tuple[int, ...]: ...
    @property
    def stages(self) -> tuple[Stage, ...]: ...
    @property
    def outputs(self) -> tuple[FoldOutput, ...]: ...
    @property
    def num_valid(self) -> bool: ...
    @property
    def ragged(self) -> str | None: ...

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that are not folded."""

    @property
    def resolved(self) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """The values of stages and of outputs; a stage result in them is exact if the stage is exact."""

    def joined(self, stage: Stage) -> tuple[int, ...]:
        """The axes that a stage folds."""

    def axes_of(self, output: FoldOutput) -> tuple[int, ...]:
        """The axes of an output, in order."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """The same program with other fields."""
