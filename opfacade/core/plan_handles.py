"""Numbers for plans, where only a number can be passed: an argument of torch.ops, a field of another language.

A number belongs to one plan for the life of the process. It does not keep the plan alive, and no other plan gets it later.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from opfacade.core import opaque
from opfacade.errors import PlanStateError

_numbers = itertools.count(2)  # torch.compile makes a graph of its own for a 0 and for a 1
_plans: dict[int, weakref.ref[Any]] = {}


def give(plan: Any) -> int:
    """The number of a new plan."""
    opaque.apply()
    handle = next(_numbers)
    _plans[handle] = weakref.ref(plan, lambda _: _plans.pop(handle, None))
    return handle


def plan_of(handle: int) -> Any:
    """The plan of a number. Raises PlanStateError where the plan is gone or the number was never given."""
    known = _plans.get(handle)
    plan = None if known is None else known()
    if plan is None:
        hint = "A handle does not keep its plan: hold the plan as long as the handle is used."
        message = f"plan_of: handle expected that of a plan that is alive, got {int(handle)}. {hint} [OPF-R020]"
        raise PlanStateError(message, code="OPF-R020", stage="run", hint=hint)
    return plan
