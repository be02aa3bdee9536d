"""A call whose outputs have no elements launches nothing, whichever kernel serves it. No GPU is needed."""

import pytest

from opfacade import Target
from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import writes_nothing
from opfacade.errors import OpfacadeError
from opfacade.select.registry import candidates_for, examples

SM_90A = Target.parse("sm_90a")
ROWS = ("total_num_rows", "batch_size", "num_rows")


def empty(descriptor):
    """The example with no rows; None if no field is a number of rows, or rows remain."""
    fields = {name: 0 for name in ROWS if isinstance(getattr(descriptor, name, None), int)}
    fields |= {"shape": (0, *descriptor.shape[1:])} if hasattr(descriptor, "shape") else {}
    try:
        found = descriptor.model_copy(update=fields).revalidated()
        return found if fields and writes_nothing(found) else None
    except OpfacadeError:
        return None


CASES = [
    pytest.param(found, candidate, id=f"{found.op}-{candidate.name}")
    for found in filter(None, map(empty, examples()))
    for candidate in candidates_for(type(found))
    if candidate.backend == "cuda" and not candidate.declines(found, SM_90A)
]


@pytest.mark.parametrize(("descriptor", "candidate"), CASES)
def test_a_call_without_output_elements_launches_nothing(descriptor, candidate):
    launcher = candidate.launcher(descriptor, SM_90A, candidate.sku(descriptor, SM_90A), False)
    assert launcher is support.nothing_to_do
