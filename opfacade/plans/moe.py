"""Mixtures of experts: choosing the experts of each row, sending rows to experts, and combining the results."""

from opfacade.plans._moe import fused as _fused
from opfacade.plans._moe import route as _route
from opfacade.plans._moe import rows as _rows
from opfacade.plans._moe import sort as _sort
from opfacade.plans._moe.fused import FusedMoeDescriptor, FusedMoePlan
from opfacade.plans._moe.layer_fields import FusedMoeArgs
from opfacade.plans._moe.route import RouteArgs, RouteDescriptor, RoutePlan
from opfacade.plans._moe.router import Router
from opfacade.plans._moe.rows import (
    MoeCombineArgs,
    MoeCombineDescriptor,
    MoeCombinePlan,
    MoeGatherArgs,
    MoeGatherDescriptor,
    MoeGatherPlan,
)
from opfacade.plans._moe.sort import MoeSortArgs, MoeSortDescriptor, MoeSortPlan

__all__ = [
    "FusedMoeArgs", "FusedMoeDescriptor", "FusedMoePlan", "MoeCombineArgs", "MoeCombineDescriptor", "MoeCombinePlan",
    "MoeGatherArgs", "MoeGatherDescriptor", "MoeGatherPlan", "MoeSortArgs", "MoeSortDescriptor", "MoeSortPlan", "RouteArgs",
    "RouteDescriptor", "RoutePlan", "Router",
]  # fmt: skip

EXAMPLES = (*_route.EXAMPLES, *_sort.EXAMPLES, *_rows.EXAMPLES, *_fused.EXAMPLES)
