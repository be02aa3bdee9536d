"""Batches in which a few rows attend to far more keys than the others, so that tiles are split into parts on a GPU with few
SMs."""

from unittest.mock import patch

import pytest
import torch

from opfacade import Target
from opfacade.backends.cuda.attention import prefill_pieces as attention_prefill_pieces
from opfacade.plans.attention import BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs
from opfacade.testing.families.attention.requests import bits
from tests import emulator
from tests.support.assert_guarantee import hold

pytestmark = emulator.needed


@pytest.fixture(autouse=True)
def _small_bounds():
    """Accepts any assembler, and splits tiles at lengths that are short enough for the emulator."""
    with (
        patch("opfacade.backends.cuda.ptxas.release", return_value=None),
        patch.object(attention_prefill_pieces, "may_cut", lambda *_: True),
    ):
        yield


def subject_of(q, kv, sms=4, page_size=16, group=4, ragged=False, **more):
    shape = {"batch_size": len(q), "total_num_rows": sum(q), "num_qo_heads": 2 * group, "causal": True}
    dim, dtype = more.pop("head_dim", 128), more.pop("dtype", "bf16")
    if ragged:
        heads = {"total_kv_rows": sum(kv), "num_kv_heads": 2, "head_dim": dim, "dtype": dtype}
        descriptor = BatchRaggedPrefillDescriptor.model_validate(shape | heads | more)
    else:
        pages = sum(-(-n // page_size) for n in kv)
        cache = PagedKvCacheDescriptor(
            num_total_pages=pages, page_size=page_size, num_kv_heads=2, head_dim=dim, dtype=dtype, layout="HND"
        )
        descriptor = BatchPagedPrefillDescriptor.model_validate(shape | {"paged_kv": cache} | more)
    subject = emulator.subject(descriptor, device_like=Target("sm_90a", sms, 232448))
    assert dict(subject.plan.sku.spec)["split"] == "pieces"
    assert subject.plan.precision_guarantee.batch_invariant == "none"
    return subject


# The rows and keys of a batch, the number of SMs, and special fields.
BATCHES = {
    "one long row": ([1, 20, 7], [2600, 20, 7], 4, {}),
    "all alike": ([40, 40, 40, 40], [600, 600, 600, 600], 4, {}),
    "nothing but parts": ([1, 1], [1500, 1300], 7, {}),
    # The last share begins in the next-to-last tile, 100 keys after the tile begins.
    "a tile begins where a share ends": ([1, 1], [1060, 1060], 5, {}),
    "long and empty": ([1, 0, 5], [1500, 900, 0], 4, {}),
    "one key": ([1, 1, 1], [1, 1500, 1], 4, {}),
    "ragged": ([1, 20, 7], [1500, 20, 7], 4, {"ragged": True}),
    "head_dim 64 and sinks": ([1, 9], [1500, 9], 4, {"head_dim": 64, "sinks": True}),
    "an fp8 cache": ([1, 9], [1500, 9], 4, {"dtype": "f8_e4m3", "q_dtype": "bf16", "kv_scale": "head"}),
    "products of fp8": ([1, 9], [1500, 9], 4, {"dtype": "f8_e4m3", "kv_scale": "head", "q_scale": "tensor"}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_row_is_within_the_bound(name):
    """Each call runs twice with differently filled outputs: the previous content of the workspace does not change the next
    launch."""
    q, kv, sms, more = BATCHES[name]
    hold(subject_of(q, kv, sms, **more), 1, inputs.DrawnLengths(q=q, kv=kv))


def test_the_bits_do_not_depend_on_which_cta_ends_last(monkeypatch):
    """The CTA that arrives last merges the parts in their order. The counters start from the content of the workspace."""
    q, kv, sms, _ = BATCHES["nothing but parts"]
    subject = subject_of(q, kv, sms)
    args, workspace, found = subject.args(1, inputs.DrawnLengths(q=q, kv=kv)), subject.workspace(), []
    for backwards in ("", "1", "1", ""):
        monkeypatch.setenv("SIMT_BACKWARDS", backwards)
        args.o.fill_(float("nan"))
        subject.run(args, workspace)
        # lse is included, because o hides f32 differences
        found.append(torch.cat([bits(args.o).flatten().int(), bits(args.lse).flatten().int()]))
    assert all(torch.equal(found[0], other) for other in found[1:])
