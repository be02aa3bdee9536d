"""PlanCache: plans for a few batch sizes; each plan serves batches up to its size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.errors import ArgumentError, ArgumentTypeError
from opfacade.plan import Plan
from opfacade.serving.workspace import Workspace


class PlanCache:
    """Plans by batch size, for a serving loop that captures one CUDA graph per size and pads a batch to the next size.

        plans = PlanCache(lambda n: decode_of(n), sizes=(1, 2, 4, 8, 16, 32))       # decode_of: a descriptor for n requests
        plans.compile()                                # before the first capture: builds, loads, reserves the workspace
        for n in plans.sizes: ...                      # capture plans.at(n).run(args[n], plans.workspace.of(plans.at(n)))
        graphs[plans.size_for(len(requests))].replay()

    make: returns the descriptor for a batch size. sizes: positive ints in any order; kept ascending as `sizes`. prefer, target:
    are passed to every `Plan.select`; None: its default. workspace: is shared by all plans of this cache and of other caches
    with the same workspace; None: a new one for the current device. The cache keeps its plans alive, so their handles stay
    valid."""

    __slots__ = ("_make", "_plans", "_prefer", "_target", "sizes", "workspace")

    sizes: tuple[int, ...]
    workspace: Workspace

    def __init__(
        self,
        make: Callable[[int], Descriptor[Any]],
        sizes: Iterable[int],
        *,
        prefer: Preference | None = None,
        target: Target | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        self.sizes = _checked(sizes)
        self.workspace = Workspace() if workspace is None else workspace
        self._make, self._prefer, self._target = make, prefer, target
        self._plans: dict[int, Plan[Any]] = {}

    def size_for(self, n: int) -> int:
        """The smallest size that is at least n. Raises ArgumentError (OPF-W005) if n exceeds the largest size or is negative,
        ArgumentTypeError (OPF-W004) if n is not an int."""
        if type(n) is not int:
            message = f"PlanCache.size_for: n expected an int, got {n!r} of {type(n).__name__}. [OPF-W004]"
            raise ArgumentTypeError(message, code="OPF-W004", stage="plan_cache")
        if 0 <= n <= self.sizes[-1]:
            return self.sizes[bisect_left(self.sizes, n)]
        hint = "Serve it without a graph, or add a size."
        message = f"PlanCache.size_for: n expected 0 to {self.sizes[-1]}, got {n}. {hint} [OPF-W005]"
        raise ArgumentError(message, code="OPF-W005", stage="plan_cache", hint=hint)

    def at(self, n: int) -> Plan[Any]:
        """The plan for `size_for(n)`, which is selected once."""
        size = self.size_for(n)
        plan = self._plans.get(size)
        if plan is None:
            plan = self._plans.setdefault(size, Plan.select(self._make(size), self._prefer, self._target))
        return plan

    def compile(self) -> None:
        """Selects, builds and loads the plans of all sizes, and reserves the workspace, so a later capture allocates
        nothing."""
        plans = [self.at(size) for size in self.sizes]
        for plan in plans:
            plan.compile()
        self.workspace.reserve(*plans)


def _checked(sizes: Iterable[int]) -> tuple[int, ...]:
    found = tuple(sizes)
    wrong = [size for size in found if type(size) is not int]
    if wrong:
        message = f"PlanCache: sizes expected ints, got {wrong[0]!r} of {type(wrong[0]).__name__}. [OPF-W004]"
        raise ArgumentTypeError(message, code="OPF-W004", stage="plan_cache")
    if not found or min(found) < 1:
        message = f"PlanCache: sizes expected one or more positive ints, got {list(found)}. [OPF-W004]"
        raise ArgumentError(message, code="OPF-W004", stage="plan_cache")
    return tuple(sorted(set(found)))
