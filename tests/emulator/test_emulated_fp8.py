"""The prefill with fp8 products in the emulator, whose tensor cores truncate their sums as the device does."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade.testing import inputs, numerics
from opfacade.testing.families.attention import structural
from tests import emulator
from tests.emulator import test_emulated_wgmma as wide
from tests.emulator.nonfinite_key import check_a_nonfinite_key, check_a_second_masked_tile

pytestmark = emulator.needed
hold = lambda *args, **more: wide.hold(*args, impl="wgmma_fp8_tile", **more)  # noqa: E731


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def paged(**more):
    return wide.paged(**{"dtype": "f8_e4m3", "head_dim": 128, "rows": 40, "kv_scale": "head", "q_scale": "tensor"} | more)


def ragged(**more):
    return wide.ragged(**{"dtype": "f8_e4m3", "head_dim": 128, "q_scale": "tensor"} | more)


KINDS = {
    "paged": paged(),
    "full-f16": paged(causal=False, o_dtype="f16", kv_scale="tensor", layout="HND", page_size=32),
    "odd-group-window-cap": paged(page_size=48, group=3, window_left=60, logits_soft_cap=9.0),
    "fixed-split": paged(page_size=64, kv_split=100, window_left=200, sinks=True),
    "maxima-move": paged(sm_scale=4.0, q_scale="none", kv_scale="none"),
    "ragged": ragged(),
    "query-of-heads": ragged(q_scale="head", num_qo_heads=6),
    "negative": ragged(sm_scale=-0.1, allow_unusual_scale=True, o_dtype="f16", q_scale="none"),
}
QUICK = ("full-f16", "odd-group-window-cap", "maxima-move", "ragged", "query-of-heads")


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.heavy) for k in KINDS])
def test_it_keeps_its_guarantee(kind):
    hold(KINDS[kind], seed=3)


def test_the_content_of_unused_memory_does_not_change_the_result():
    assert structural.what_is_unused_does_not_matter(emulator.subject(ragged(kv_split="off")), wide.PARTLY) == []


def test_equal_scores_have_equal_weights_and_lose_no_bits():
    """With q = 0, a weight at its base is a power of two, so V = 1 gives exactly 1, and no sum of weights changes a base."""
    subject = emulator.subject(paged(causal=False, kv_scale="none", q_scale="none"))
    args = subject.args(3)
    args.q.zero_()
    args.v_data.view(torch.uint8).fill_(0x38)  # 1
    subject.run(args)
    lengths = [len(range(*args.kv_indptr[r : r + 2].tolist())) for r in range(2)]
    for request, pages in enumerate(lengths):
        rows = slice(*args.q_indptr[request : request + 2].tolist())
        assert bool((args.o[rows] == (1.0 if pages else 0.0)).all())


def test_a_sum_over_a_long_context_does_not_lose_small_terms():
    """The sum grows with the context; inside the tensor cores, a weight below 2^-13 of the sum would add nothing."""
    descriptor = wide.ragged(dtype="f8_e4m3", head_dim=128, num_kv_heads=1, total_kv_rows=2500, total_num_rows=4, batch_size=1)
    subject = emulator.subject(descriptor)
    args = subject.args(3)
    args.v.view(torch.uint8).fill_(0x38)
    subject.run(args)
    assert float((args.o.double() - 1).abs().max()) < 0.02


@pytest.mark.parametrize("pool", [pytest.param("k", marks=pytest.mark.heavy), "v"])
def test_a_nonfinite_key_reaches_only_the_rows_that_see_it(pool):
    check_a_nonfinite_key(ragged(window_left=70), pool)


def test_a_large_last_score_does_not_saturate_its_weight():
    """Keys are processed from last to first: a key of the last tile weighs 2^5.8 times the weight 16 of the earlier keys, and
    the largest e4m3 number is 448."""
    descriptor = ragged(q_scale="none", sm_scale=1.0, kv_split="off")
    subject = emulator.subject(descriptor)
    args = subject.args(4, inputs.DrawnLengths(q=[45, 45], kv=[200, 200]))
    ones, far = torch.ones(200, dtype=torch.float), torch.arange(200) == 3
    args.q.copy_(torch.eye(1, 128).expand(args.q.shape))
    args.k.copy_((4.0 * far)[:, None, None].repeat(2, 2, 1) * torch.eye(1, 128))
    args.v.copy_(torch.where(far, ones, -ones)[:, None, None].repeat(2, 2, 128))
    subject.run(args)
    report = numerics.check(descriptor, args, subject.plan.sku)
    assert report.worst <= 1, report


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"head_dim": 64}, "head_dim"),
        ({"page_size": 5}, "page_size"),
        ({"dtype": "f8_e5m2"}, "q_dtype"),
        ({"o_dtype": "f32"}, "o_dtype"),
    ],
)
def test_an_unsupported_problem_is_declined_with_a_reason(more, field):
    reasons = emulator.subject(paged(**more)).declined
    assert f"{field}=" in reasons


def test_strides_that_tma_does_not_support_are_refused():
    descriptor = KINDS["ragged"]
    subject = emulator.subject(descriptor)
    args = subject.args(4)
    odd = torch.empty((*args.k.shape[:-1], 136), dtype=args.k.dtype)[..., :128]
    loose = replace(args, k=odd.copy_(args.k))
    with pytest.raises(ValueError, match="expected strides of whole 16 bytes"):
        subject.run(loose)


def test_a_nonfinite_value_of_a_second_masked_tile_reaches_only_the_rows_that_see_it():
    check_a_second_masked_tile(ragged(batch_size=1, total_num_rows=128, total_kv_rows=319, num_qo_heads=2))
