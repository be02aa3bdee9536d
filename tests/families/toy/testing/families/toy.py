"""The harness of the toy family."""

from __future__ import annotations

from typing import Any

from opfacade.core.dtypes import ROUNDOFF, UNDERFLOW
from opfacade.testing.bits import bits
from opfacade.testing.bounds import Bounded
from opfacade.testing.harness import Harness


class ScaleHarness(Harness):
    unit = "rows"

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        y = args.x.double() * args.gain.double() * descriptor.factor
        peak = y.abs().amax(-1) if y.shape[0] else y.new_zeros(0)
        return [_near("x", y, descriptor.dtype), _near("peak", peak, "f32")]


class PickHarness(Harness):
    unit = "rows"

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        """One product and one sum in f32, then one rounding."""
        x, picked = args.x.double(), args.gain.double() * args.table.double()[args.index.long()]
        bound = 1.02 * (2 * 2.0**-24 + ROUNDOFF[descriptor.dtype]) * (x.abs() + picked.abs()) + UNDERFLOW[descriptor.dtype]
        return [Bounded("x" if descriptor.in_place else "out", x + picked, bound, bound)]


class KeepHarness(Harness):
    unit = "rows"

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        """The output must equal the expected bits."""
        want = bits(args.x) * args.mask[:, None]
        return [Bounded("out", want, want, want)]


def _near(name: str, want: Any, dtype: str) -> Bounded:
    """A bound for two products in f32 and one rounding."""
    bound = 1.02 * (3 * 2.0**-24 + ROUNDOFF[dtype]) * want.abs() + UNDERFLOW[dtype]
    return Bounded(name, want, bound, bound)


HARNESSES: dict[str, Harness] = {"scale": ScaleHarness(), "pick": PickHarness(), "keep": KeepHarness()}
