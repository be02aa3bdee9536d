"""Faults in plans and in the requirements of a call: operands, strides, overlaps, workspaces."""

from tests.mutation.mutant import host

PLAN, CHECKS = "plan.py", "core/checks.py"
PLANS, CALLS, OPERANDS = "tests/test_plan.py", "tests/core/test_can_implement.py", "tests/core/test_operands.py"

FAULTS = (
    host(
        "plan: the target is not in the key of a selection",
        PLAN,
        "_remember(key, plan)",
        "_remember((*key[:3], Target.current()), plan)",
        PLANS,
    ),
    host(
        "check: a size may be smaller",
        CHECKS,
        "any(d.size not in (None, n) for d, n",
        "any(d.size is not None and d.size < n for d, n",
        CALLS,
    ),
    host(
        "check: a size may be larger",
        CHECKS,
        "any(d.size not in (None, n) for d, n",
        "any(d.size is not None and d.size > n for d, n",
        CALLS,
    ),
    host(
        "check: index tensors need the alignment of others",
        "core/operands.py",
        '"contiguous", ITEMSIZE[dtype], valid_rows',
        '"contiguous", 16, valid_rows',
        OPERANDS,
    ),
    host(
        "check: neighbours alone are compared",
        CHECKS,
        "for other, neighbour in live[i + 1 :]:",
        "for other, neighbour in live[i + 1 : i + 2]:",
        f"{CALLS} {OPERANDS}",
    ),
    host(
        "check: the first issue alone is reported",
        CHECKS,
        "        issues += _one(name, spec, value)",
        "        issues = issues or _one(name, spec, value)",
        OPERANDS,
    ),
)
