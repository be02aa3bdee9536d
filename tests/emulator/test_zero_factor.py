"""A factor of K that is 0, as for a head of zeros that was quantised by its maximum, or a tiny scale, gives equal weights and
no NaN."""

from unittest.mock import patch

import pytest
import torch

from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs, numerics
from tests import emulator

pytestmark = emulator.needed

KINDS = {
    "wgmma_tile": ("sm_90a", 64, {"q_dtype": "bf16"}),
    "wgmma_tile, soft cap": ("sm_90a", 64, {"q_dtype": "bf16", "logits_soft_cap": 9.0}),
    "wgmma_fp8_tile": ("sm_90a", 128, {"q_dtype": "f8_e4m3", "o_dtype": "bf16"}),
    "mma_tile": ("sm_89", 64, {"q_dtype": "bf16"}),
    "split_kv": ("sm_89", 64, {"q_dtype": "f16"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [0.0, 1e-44], ids=["zero", "hardly anything"])
def test_a_zero_factor_of_k_gives_equal_weights(kind, factor):
    arch, head_dim, more = KINDS[kind]
    impl, _, _ = kind.partition(",")
    cache = PagedKvCacheDescriptor(
        num_total_pages=20, page_size=16, num_kv_heads=2, head_dim=head_dim, dtype="f8_e4m3", layout="NHD"
    )
    shape = {"batch_size": 1, "num_qo_heads": 8, "paged_kv": cache, "kv_scale": "head", **more}
    if impl == "split_kv":
        descriptor, lengths = BatchPagedDecodeDescriptor(**shape), inputs.DrawnLengths(kv=[150])
    else:
        descriptor = BatchPagedPrefillDescriptor(total_num_rows=40, causal=True, **shape)
        lengths = inputs.DrawnLengths(q=[40], kv=[150])  # rows begin with a tile whose keys are invisible to some rows
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        subject = emulator.subject(descriptor, arch=arch)
        assert subject.plan.sku.impl == impl
        args = subject.args(3, lengths)
        args.k_scale[0] = factor
        subject.run(args)
        report = numerics.check(descriptor, args, subject.plan.sku, rows=40)
    assert not torch.isnan(args.o.float()).any()
    assert report.worst <= 1, report


@pytest.mark.parametrize("sm_scale", [1e-50, -1e-50])
@pytest.mark.parametrize(("impl", "arch"), [("wgmma_tile", "sm_90a"), ("mma_tile", "sm_89"), ("split_kv", "sm_89")])
def test_a_tiny_scale_gives_equal_weights(impl, arch, sm_scale):
    cache = PagedKvCacheDescriptor(num_total_pages=20, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="NHD")
    shape = {"batch_size": 1, "num_qo_heads": 8, "paged_kv": cache, "sm_scale": sm_scale, "allow_unusual_scale": True}
    if impl == "split_kv":
        descriptor, lengths = BatchPagedDecodeDescriptor(**shape, window_left=70), inputs.DrawnLengths(kv=[150])
    else:
        descriptor = BatchPagedPrefillDescriptor(total_num_rows=40, causal=True, **shape)
        lengths = inputs.DrawnLengths(q=[40], kv=[150])
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        subject = emulator.subject(descriptor, arch=arch)
        assert subject.plan.sku.impl == impl
        args = subject.args(3, lengths)
        subject.run(args)
        report = numerics.check(descriptor, args, subject.plan.sku, rows=40)
    assert report.worst <= 1, report
