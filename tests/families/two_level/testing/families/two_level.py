"""The harness of the family. Inputs, slices of batches and byte counts follow from the operands."""

from __future__ import annotations

from typing import Any

from opfacade.core.tensor_lists import elements
from opfacade.testing.bounds import Bounded
from opfacade.testing.harness import Harness


class RestoreHarness(Harness):
    unit = "rows"

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        """Sums in f64, then one rounding to f32."""
        from opfacade.backends.reference.two_level import decoded

        shards = [getattr(args, name).double() for name in elements("shard", descriptor.num_shards)]
        want = decoded(descriptor, args) + sum(shards)
        bound = 1.02 * 2.0**-24 * want.abs() + 2.0**-150 + 1e-14 * sum(one.abs() for one in shards)
        return [Bounded("out", want, bound, bound)]


HARNESSES: dict[str, Harness] = {"restore": RestoreHarness()}
