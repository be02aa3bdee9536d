"""Batches whose lengths need each way of distributing pieces, on a GPU with few SMs, so that work units are split."""

import pytest

from opfacade import Target
from opfacade.backends.cuda.attention import decode as attention_decode
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs
from tests import emulator
from tests.support.assert_guarantee import hold
from tests.support.decode_splits import splits

pytestmark = emulator.needed

SMALL = Target("sm_80", 4, 166912)

# The lengths of a batch, and the number of splits of its longest unit, on four SMs with three resident CTAs each.
BATCHES = {
    "equal, at once": ([900], 6),
    "equal, with a tail": ([640] * 7, 1),
    "equal, a tail behind more waves than there are slots": ([320] * 25, 1),
    "nearly equal": ([700 - 9 * i for i in range(9)], 1),
    "unlike, at once": ([2000, 600], 4),
    "one long": ([2000] + [40] * 35, 4),
    "many": ([(37 * i) % 90 for i in range(150)] + [6000, 700], 3),
    "nothing": ([0, 0, 0], 1),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_request_is_within_the_bound(name):
    lengths, parts = BATCHES[name]
    pages = sum(-(-n // 16) for n in lengths) + 1
    cache = PagedKvCacheDescriptor(num_total_pages=pages, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="HND")
    descriptor = BatchPagedDecodeDescriptor(batch_size=len(lengths), num_qo_heads=4, paged_kv=cache, max_kv_indices=20_000)
    subject = emulator.subject(descriptor, device_like=SMALL)
    assert dict(subject.plan.sku.spec)["split"] == "pieces"
    resident = attention_decode.grid_of(descriptor, SMALL)[1] // 3
    cut = splits([max(1, -(-n // 64)) for n in lengths], 2, resident)
    assert cut[0].parts == parts
    hold(subject, 1, inputs.DrawnLengths(q=[1] * len(lengths), kv=lengths))
