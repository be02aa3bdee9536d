"""A run may allocate device memory or wait for the device only where its SKU says so and the preference allows it."""

import pytest

from opfacade import Plan, Preference, Target, explain
from opfacade.errors import UnsupportedError
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.select.registry import candidates_for, descriptor_types


def test_references_may_allocate_and_wait_and_kernels_do_not():
    """Calls over ranks run the reference's arithmetic on tensors of a GPU."""
    for kind in descriptor_types().values():
        for one in candidates_for(kind):
            does = one.backend == "reference" or one.name in ("cuda/nccl", "cuda/peers")
            assert (one.allocates, one.synchronises) == (does, does), one.name


@pytest.mark.parametrize(
    ("field", "text"), [("allow_allocation", "allocate device memory"), ("allow_sync", "wait for the device")]
)
def test_a_run_that_may_not_allocate_or_wait_takes_no_reference(field, text):
    problem = MatmulDescriptor(total_num_rows=7, n=24, k=40, dtype="f32", activation="gelu")
    with pytest.raises(UnsupportedError, match=rf"reference/torch: its run may {text}, and {field} is False.*OPF-S024"):
        Plan.select(problem, Preference(**{field: False}), Target.cpu())
    assert "may allocate, may wait for the device" in str(explain(problem, target=Target.cpu()))
    assert Plan.select(problem, target=Target.cpu()).sku.backend == "reference"
