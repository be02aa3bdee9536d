"""compute-sanitizer runs only problems that descriptors allow: a page beyond the cache would be an error of the test."""

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.testing import inputs, matrix
from opfacade.testing.harness import harness_of
from tests import sanitized
from tests.sanitized import APART, SEEDS
from tests.support.assemblers import any_assembler


@pytest.mark.parametrize("kind", matrix.attention())
def test_small_problems_are_what_their_descriptor_allows(kind):
    descriptor = matrix.attention()[kind]
    lengths = harness_of(descriptor).short_lengths(descriptor)
    assert len(lengths.kv) == descriptor.batch_size
    assert max(lengths.kv) > 64 or descriptor.batch_size < 4
    if hasattr(descriptor, "paged_kv"):
        size = descriptor.paged_kv.page_size
        assert sum(-(-n // size) for n in lengths.kv) <= descriptor.paged_kv.num_total_pages
    args = inputs.make_args(descriptor, SEEDS[0], "cpu", lengths)
    if getattr(args, "kv_indices", None) is not None:
        assert int(args.kv_indptr[-1]) <= args.kv_indices.numel()


@pytest.mark.parametrize("kind", APART)
def test_lanes_that_end_apart_are_shown_at_a_cluster_barrier(kind):
    with any_assembler():
        sku = Plan.select(APART[kind], Preference(backend="cuda"), Target.parse("sm_90a")).sku
    told = dict(sku.spec)
    assert told.get("cluster") == 8 or told.get("split") == "cluster", sku.id


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bfloat16])
def test_a_tensor_that_ends_within_a_vector_gets_the_whole_vector(dtype, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda x: x)
    x = torch.randn(5, 7).to(dtype)
    copied = sanitized.whole_vectors(x)
    assert torch.equal(copied.view(torch.uint8), x.view(torch.uint8))
    assert copied.shape == x.shape
    assert copied.untyped_storage().nbytes() == -(-35 * x.element_size() // 16) * 16
