"""One operand after the other begins one element into its storage: it is refused for its address, or read and written
correctly.

The kernels are built with a trap at every misaligned access, like on a GPU. The bound of the SKU checks the result.
"""

import pytest

from opfacade import Plan, Preference, Target
from opfacade.core.operands import nbytes
from opfacade.errors import UnsupportedError
from opfacade.select.registry import examples
from tests import emulator
from tests.support import unaligned

# The emulator checks the addresses of the copies of these ops in every test.
TILES = ("paged_prefill", "paged_decode", "ragged_prefill", "mla_decode", "matmul")
SM_90A = Target.parse("sm_90a")


def kernel_of(problem):
    try:
        return Plan.select(problem, Preference(backend="cuda"), SM_90A).sku.id.split("/")[4]
    except UnsupportedError:
        return None


def is_odd(problem):
    """True if no vector size divides the heads of a rotation."""
    if problem.op == "rotary":
        return problem.head_dim % 8 != 0
    return problem.op == "qkv_prepare" and problem.paged_kv.head_dim % 8 != 0


def chosen():
    """The smallest problem of each kernel of an op that can read rows by vectors, with separate outputs if possible."""
    least = {}
    for problem in examples():
        impl = None if problem.op in TILES else kernel_of(problem)
        size = bool(getattr(problem, "in_place", False)), nbytes(list(problem.operands().values()))
        if impl is not None and not is_odd(problem) and size < least.get((problem.op, impl), ((True, 1e9),))[0]:
            least[problem.op, impl] = size, problem
    return {f"{op}-{impl}": problem for (op, impl), (_, problem) in least.items()}


CHOSEN = chosen()


def judged(subject, problem):
    """The wrong results of calls with one moved operand each, by operand name."""
    found = {}
    for name, args in unaligned.calls(problem, 5):
        if args is not None:
            found[name] = unaligned.in_a_child(lambda: unaligned.worst(problem, subject.run, subject.plan.sku, args) <= 1)  # noqa: B023
    assert found
    return {name: code for name, code in found.items() if code}


@emulator.needed
@pytest.mark.parametrize("name", CHOSEN)
def test_an_operand_one_element_on(name):
    problem = CHOSEN[name]
    with emulator.trapping_unaligned():
        assert judged(emulator.subject(problem), problem) == {}
