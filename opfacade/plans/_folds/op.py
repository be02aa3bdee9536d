"""FoldOp: the part of a descriptor that the fold engines read. `FoldProgram`, every `NamedFold`, and gated activations that
compute scales are such ops."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from opfacade.plans._folds.program import FoldArgs, FoldProgram

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args
    from opfacade.core.operands import TensorSpec
    from opfacade.plans._quantize.quant import Quant

Axes = tuple[int, ...]


class FoldOp(Protocol):
    """A problem that is a fold."""

    @property
    def op(self) -> str: ...
    @property
    def category(self) -> str: ...

    @property
    def form(self) -> Hashable:
        """Identifies the problems whose programs differ only in sizes."""

    def folded(self) -> FoldProgram:
        """The whole op as a program over its axes."""

    def dims(self) -> Mapping[str, tuple[Axes, ...]]:
        """The axes of each dimension of a tensor, by name; absent if each dimension is a single axis."""

    def facts(self) -> dict[str, Any]:
        """Additional fields of the SKU."""

    def operands(self) -> dict[str, TensorSpec]:
        """The tensors of a call."""

    def fold_args(self, args: Args) -> FoldArgs:
        """The call with views whose dimensions are the axes of the program."""


class Quantised(Protocol):
    """A fold whose results may be quantised."""

    @property
    def quant(self) -> Quant | None: ...


class QuantisedFold(FoldOp, Quantised, Protocol):
    """A fold whose results may have one scale for all rows."""

    def launched(self) -> FoldProgram:
        """The fold of rows that reads the scale and writes the largest |result| of each row."""


class GatedFold(QuantisedFold, Protocol):
    """A fold of gates and ups that are parts of the rows of one tensor."""

    @property
    def dtype(self) -> str: ...
    @property
    def interleaved(self) -> bool: ...
    @property
    def makes_scales(self) -> bool: ...
    @property
    def parts(self) -> tuple[str, ...]: ...
