"""Valid calls of every op, and how a wrong call is refused."""

import pytest
import torch

from opfacade import Verdict
from tests.families.cascade.test_reference import states
from tests.support.problems import append, bits, decode, on_reference, prefill, ragged

PROBLEMS = {
    "prefill": lambda: prefill([3, 2], [6, 9]),
    "prefill block": lambda: prefill([3, 2], [6, 9], page_table="block"),
    "decode": lambda: decode([6, 9]),
    "decode block": lambda: decode([6, 9], page_table="block"),
    "ragged": lambda: ragged([3, 2], [6, 9]),
    "append": lambda: append([3, 2], [6, 9]),
    "merge": lambda: states(2, 3, dim=8),
}


OUTPUTS = ("o", "lse", "k_data", "v_data")


def assert_refused(plan, args, error, code, *numbers, workspace=None):
    """Refused by run and can_implement, with the code and the numbers, and nothing is written."""
    given = {n: getattr(args, n, None) for n in OUTPUTS}
    before = {n: bits(t).clone() for n, t in given.items() if isinstance(t, torch.Tensor) and t.device.type == "cpu"}
    verdict = plan.can_implement(args, workspace)
    assert isinstance(verdict, Verdict)
    assert not verdict
    with pytest.raises(error) as caught:
        plan.run(args, workspace)
    assert caught.value.code == code
    assert caught.value.issues == verdict.issues
    assert (caught.value.stage, caught.value.op) == ("run", plan.descriptor.op)
    assert all(number in str(caught.value) for number in (*numbers, f"[{code}]"))
    assert all(torch.equal(bits(getattr(args, n)), was) for n, was in before.items())
    return caught.value


def remembered(problem="decode"):
    """A plan that has run a valid call, and that call."""
    descriptor, args = PROBLEMS[problem]()
    plan = on_reference(descriptor)
    plan.run(args), plan.run(args)
    assert plan.can_implement(args)
    return plan, args
