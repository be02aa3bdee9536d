"""The only measure of error: `check` compares the outputs of any operator's call with the bound of its SKU.

The op's harness computes the expected values in fp64 and the bound; `opfacade.testing.bounds` compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, inout
from opfacade.core.sku import KernelSku
from opfacade.testing.bounds import Bounded, Report, compare, constants, join
from opfacade.testing.harness import Ran, Sample, harness_of

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args

    Before = Mapping[str, Tensor] | Sequence[Tensor]

__all__ = ["Bounded", "Report", "check", "compare", "constants", "join", "snapshot"]


def check(
    descriptor: Descriptor[Any],
    args: Args,
    sku: KernelSku,
    rows: int | None = None,
    seed: int = 0,
    before: Before | None = None,
) -> Report:
    """Compare the outputs in `args` with the SKU's bound.

    rows: the number of rows to sample, drawn by `seed`; None: all rows. before: copies of the inout operands from before the
    run, by name, from `snapshot`, or a sequence in the order of the operands.
    """
    ran = Ran(descriptor, args, sku, _by_name(descriptor, before))
    return harness_of(descriptor).judge(ran, Sample(rows, seed))


def snapshot(descriptor: Descriptor[Any], args: Args) -> dict[str, Tensor]:
    """Copies of the operands that a run reads and overwrites, which `check` needs."""
    return {name: getattr(args, name).clone() for name in inout(descriptor)}


def _by_name(descriptor: Descriptor[Any], before: Before | None) -> dict[str, Tensor]:
    if before is None:
        return {}
    return dict(before) if isinstance(before, Mapping) else dict(zip(inout(descriptor), before, strict=True))
