"""Batches whose lengths ask for each way of dealing pieces, with a GPU of few SMs so that runs are cut."""

import pytest

from opfacade import Target
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs
from tests import emulator
from tests.holding import hold

pytestmark = emulator.needed

LENGTHS = {
    "equal, at once": [900],
    "equal, with a tail": [640] * 7,
    "nearly equal": [700 - 9 * i for i in range(9)],
    "one long": [2000] + [40] * 35,
    "many": [(37 * i) % 90 for i in range(150)] + [1500, 700],
    "nothing": [0, 0, 0],
}


@pytest.mark.parametrize("name", LENGTHS)
def test_every_request_has_its_result(name):
    lengths = LENGTHS[name]
    pages = sum(-(-n // 16) for n in lengths) + 1
    cache = PagedKvCacheDescriptor(num_total_pages=pages, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16")
    descriptor = BatchPagedDecodeDescriptor(batch_size=len(lengths), num_qo_heads=4, paged_kv=cache, max_kv_indices=20_000)
    subject = emulator.subject(descriptor, device_like=Target("sm_80", 4, 166912))
    assert dict(subject.plan.sku.spec)["split"] == "pieces"
    hold(subject, 1, inputs.Lengths(q=[1] * len(lengths), kv=lengths))
