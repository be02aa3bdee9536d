"""The plans that a rank runs on data which an exchange brought, and the kernels that a call over ranks needs.

`jit_specs` lists all of these kernels, because a warm-up, a bundle and `Group.reserve` compile what it lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.joined import Across
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.distributed import peers
from opfacade.plan import Plan
from opfacade.plans._composites.steps import problem
from opfacade.plans.collective import AllReduceNormDescriptor, MergeAcrossDescriptor

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

Problems = tuple[Descriptor[Any], ...]
_PREFERENCES = {True: Preference(), False: Preference(jit="never")}  # by whether a launcher may build
Specs = Callable[[Any, Target], "tuple[JitSpec, ...]"]


def plan_of(found: Descriptor[Any], target: Target | None = None, allow_build: bool = True) -> Plan[Any]:
    return Plan.select(found, _PREFERENCES[allow_build], target)


def of_rows(d: AllReduceNormDescriptor, rows: int) -> Descriptor[Any] | None:
    """The op that follows a sum of this number of rows; None if there is none."""
    return d.normed_rows(rows) if d.norm != "none" else d.quantised_rows(rows)


def of_sum(d: AllReduceNormDescriptor) -> Problems:
    """The ops that follow a sum on any rank: in two steps, ranks may have different numbers of rows."""
    rows = (d.own_rows, max(0, d.own_rows - 1)) if d.two_shot else (d.total_num_rows,)
    mine = d.of_own_rows() if d.two_shot else d
    return tuple(found for count in dict.fromkeys(rows) if (found := of_rows(mine, count)) is not None)


def of_states(d: MergeAcrossDescriptor) -> Any:
    """The merge_states problem for the states of all ranks and the sink; None if torch merges, to round results only once."""
    kind = d.exchange_dtype or d.dtype
    if kind != (d.out_dtype or d.dtype):
        return None
    return problem(
        "merge_states",
        num_states=d.states * d.world + int(d.sinks),
        total_num_rows=d.total_num_rows,
        num_heads=d.kept_heads,
        head_dim=d.head_dim,
        dtype=kind,
    )


def of_merge(d: MergeAcrossDescriptor) -> Problems:
    found = of_states(d)
    return () if found is None else (found,)


def with_round(kernels: Specs) -> Specs:
    """These kernels, and that of the rounds of a group with peer memory, which the group loads when it is created."""

    def specs(d: Across, target: Target) -> tuple[JitSpec, ...]:
        of_group = (peers.spec_of_rounds(target.arch),) if d.world <= peers.MOST_PEERS else ()
        return tuple(dict.fromkeys((*kernels(d, target), *of_group)))

    return specs


def kernels_of(problems: Callable[[Any], Problems]) -> Specs:
    """The kernels of the plans that follow an exchange."""
    return with_round(lambda d, target: tuple(spec for found in problems(d) for spec in plan_of(found, target).jit_specs))
