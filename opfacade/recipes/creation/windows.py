"""Window functions for signals: functions of the position along a single axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant, coord, extent
from opfacade.programs.types import FLOATS, Type
from opfacade.recipes._draft import Draft
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import refuse
from opfacade.recipes.creation.positions import as_type, type_of

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType, Scalar


NUTTALL = (0.3635819, 0.4891775, 0.1365995, 0.0106411)
BLACKMAN = (0.42, 0.5, 0.08)


class Window:
    """M points; sym=False gives a periodic window, and sym=True a symmetric window."""

    def __init__(self, M: int, sym: bool, dtype: AnyDType) -> None:
        self.dtype, type = type_of(dtype)
        if type not in FLOATS or M < 0:
            refuse("dtype" if type not in FLOATS else "M", "a float dtype, and a number of points", (dtype, M))
        self.type: Type = type
        self.draft, self.sym, self.count = Draft((M,)), sym, M

    @property
    def place(self) -> Node:
        return as_type(coord(0), self.type)

    @property
    def last(self) -> Node:
        """The distance from the first point to the last; 1 for a single point."""
        return as_type(w.max_(extent(0) - 1, 1) if self.sym else extent(0), self.type)

    def map(self, value: Node) -> MapDescriptor:
        """1 for a single point."""
        return self.draft.map(constant(1.0, self.type) if self.count == 1 else value, dtype=self.dtype)

    def cosines(self, a: Any) -> MapDescriptor:
        """The sum of a[i] cos(2 pi i x) with alternating signs."""
        turn = self.place * (2 * math.pi) / self.last
        found: Node | None = None
        for i, factor in enumerate(a):
            number = self.draft.number(f"a{i}", factor if i % 2 == 0 else -factor, self.type)
            part = number * w.cos(turn * float(i)) if i else number
            found = part if found is None else found + part
        if found is None:
            refuse("a", "at least one factor", a)
        return self.map(found)


@recipe("signal.windows.general_cosine")
def general_cosine(M: int, *, a: Scalar, sym: bool = True, dtype: AnyDType = "f32") -> MapDescriptor:
    return Window(M, sym, dtype).cosines(a)


@recipe("signal.windows.general_hamming")
def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, dtype: Any = "f32") -> MapDescriptor:
    return Window(M, sym, dtype).cosines((alpha, 1.0 - alpha))


@recipe("signal.windows.hamming")
def hamming(M: int, *, sym: bool = True, dtype: Any = "f32") -> MapDescriptor:
    return Window(M, sym, dtype).cosines((0.54, 0.46))


@recipe("signal.windows.hann")
def hann(M: int, *, sym: bool = True, dtype: Any = "f32") -> MapDescriptor:
    return Window(M, sym, dtype).cosines((0.5, 0.5))


@recipe("signal.windows.blackman")
def blackman(M: int, *, sym: bool = True, dtype: Any = "f32") -> MapDescriptor:
    return Window(M, sym, dtype).cosines(BLACKMAN)


@recipe("signal.windows.nuttall")
def nuttall(M: int, *, sym: bool = True, dtype: Any = "f32") -> MapDescriptor:
    return Window(M, sym, dtype).cosines(NUTTALL)


@recipe("signal.windows.bartlett")
def bartlett(M: int, *, sym: bool = True, dtype: AnyDType = "f32") -> MapDescriptor:
    window = Window(M, sym, dtype)
    return window.map(1.0 - w.abs_(window.place * 2.0 / window.last - 1.0))


@recipe("signal.windows.cosine")
def cosine(M: int, *, sym: bool = True, dtype: AnyDType = "f32") -> MapDescriptor:
    window = Window(M, sym, dtype)
    width = as_type(extent(0) + (0 if sym else 1), window.type)
    return window.map(w.sin((window.place + 0.5) * math.pi / width))


@recipe("signal.windows.exponential")
def exponential(M: int, *, center: Any = None, tau: float = 1.0, sym: bool = True, dtype: Any = "f32") -> MapDescriptor:
    window = Window(M, sym, dtype)
    middle = window.last * 0.5 if center is None else window.draft.number("center", center, window.type)
    return window.map(w.exp(-w.abs_(window.place - middle) / window.draft.number("tau", tau, window.type)))


@recipe("signal.windows.kaiser")
def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, dtype: AnyDType = "f32") -> MapDescriptor:
    """Computed from the product of the distances to both ends, which are exact."""
    window = Window(M, sym, dtype)
    sides = w.maximum(window.place * (window.last - window.place), 0.0)
    sharp = window.draft.number("beta", beta, window.type)
    return window.map(w.bessel_i0(w.sqrt(sides) * 2.0 * sharp / window.last) / w.bessel_i0(sharp))


@recipe("signal.windows.gaussian")
def gaussian(M: int, *, std: float = 1.0, sym: bool = True, dtype: AnyDType = "f32") -> MapDescriptor:
    window = Window(M, sym, dtype)
    apart = (window.place - window.last * 0.5) / window.draft.number("std", std, window.type)
    return window.map(w.exp(apart * apart * -0.5))
