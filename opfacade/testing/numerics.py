"""The one measure of error: `check` holds the outputs of a call to the bound of its SKU, whatever the operator.

The harness of the op states the expectation in fp64 and its bound; `opfacade.testing.bounds` compares.
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
    """Hold the outputs in `args` to the SKU's bound.

    rows: how many rows to sample, drawn by `seed`; None is all of them. before: the operands of role inout as they were before
    the run, by name, from `snapshot`; also a sequence of them in the order of the operands.
    """
    ran = Ran(descriptor, args, sku, _by_name(descriptor, before))
    return harness_of(descriptor).judge(ran, Sample(rows, seed))


def snapshot(descriptor: Descriptor[Any], args: Args) -> dict[str, Tensor]:
    """Copies of the operands that a run reads and overwrites: what `check` needs of the time before the run."""
    return {name: getattr(args, name).clone() for name in inout(descriptor)}


def _by_name(descriptor: Descriptor[Any], before: Before | None) -> dict[str, Tensor]:
    if before is None:
        return {}
    return dict(before) if isinstance(before, Mapping) else dict(zip(inout(descriptor), before, strict=True))
