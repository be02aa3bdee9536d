"""The prefill for sm_90a in the emulator: roles, barriers, TMA boxes, swizzles, descriptors and fragments of the kernel's own
code."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade.plans._attention.variant import Variant, f32, kv_pos, not_equal, per_head, per_row, q_pos, query, score, select
from opfacade.plans._attention.variant_examples import alibi, sliding_window, soft_cap
from opfacade.plans.attention import BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs, matrix, numerics
from opfacade.testing.families.attention import metamorphic, structural
from tests import emulator
from tests.emulator.nonfinite_key import check_a_nonfinite_key, check_a_second_masked_tile
from tests.support import assert_guarantee as holding

pytestmark = emulator.needed


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def paged(page_size=16, head_dim=64, group=4, rows=70, batch=2, **more):
    cache = PagedKvCacheDescriptor(
        num_total_pages=-(-700 // page_size), page_size=page_size, num_kv_heads=2, head_dim=head_dim,
        dtype=more.pop("dtype", "bf16"), layout=more.pop("layout", "NHD"),
    )  # fmt: skip
    return BatchPagedPrefillDescriptor(
        batch_size=batch, total_num_rows=rows, num_qo_heads=2 * group, causal=more.pop("causal", True), paged_kv=cache, **more
    )


def ragged(**more):
    shape = {"batch_size": 2, "total_num_rows": 90, "total_kv_rows": 400, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    return BatchRaggedPrefillDescriptor(**shape | {"dtype": "f16", "causal": True} | more)


def uneven(group=1, rows=70, kv_rows=300, batch=2, **more):
    """A prefill with the head dimensions of latent attention before absorption."""
    return BatchRaggedPrefillDescriptor(
        batch_size=batch, total_num_rows=rows, total_kv_rows=kv_rows, num_qo_heads=2 * group, num_kv_heads=2, head_dim=192,
        head_dim_vo=128, dtype=more.pop("dtype", "bf16"), causal=more.pop("causal", True), **more,
    )  # fmt: skip


KINDS = {
    "paged": paged(),
    "page-1": paged(page_size=1, rows=40),
    "page-100-d128-full": paged(page_size=100, head_dim=128, rows=40, causal=False),
    "odd-group-window-cap": paged(page_size=8, group=3, window_left=60, logits_soft_cap=9.0, layout="HND"),
    "d256-off": paged(page_size=64, head_dim=256, group=2, rows=90, kv_split="off"),
    "fixed-split": paged(page_size=32, kv_split=100, window_left=200),
    "ragged": ragged(),
    "fp8": paged(dtype="f8_e4m3", q_dtype="bf16", kv_scale="head", rows=40, head_dim=128),
    "fp8-cap-window": paged(dtype="f8_e5m2", q_dtype="f16", logits_soft_cap=9.0, window_left=60, page_size=5),
    "fp8-d256-split": paged(
        dtype="f8_e4m3", q_dtype="bf16", kv_scale="tensor", head_dim=256, kv_split=200, rows=30, sinks=True
    ),
    "fp8-d64": paged(dtype="f8_e5m2", q_dtype="bf16", rows=60, page_size=32, causal=False),
    "fp8-page-1": paged(dtype="f8_e4m3", q_dtype="f16", kv_scale="head", rows=150, head_dim=128, page_size=1),
    "fp8-ragged": ragged(dtype="f8_e4m3", q_dtype="bf16"),
    "maxima-move": paged(rows=40, sm_scale=4.0),
    "sinks": paged(group=8, window_left=127, kv_split="off", sinks=True, rows=40),
    "alibi-masked": paged(rows=40, variant=alibi(8), custom_mask=True),
    "line-down": paged(rows=40, group=3, variant=Variant(logits=f32(q_pos - kv_pos) * per_head("slopes") + score)),
    "line-of-keys": ragged(variant=Variant(logits=score + 0.3 * f32(kv_pos)), sm_scale=-0.1, allow_unusual_scale=True),
    "varied-page-1-full": paged(
        page_size=1,
        group=3,
        rows=40,
        causal=False,
        kv_split=100,
        window_left=300,
        variant=Variant(
            logits=select(kv_pos < 50 * per_row("phase"), soft_cap(3.0).logits, 0.5 * score),
            mask=not_equal((kv_pos + q_pos) % 4, per_row("phase")),
            query=query / (1.0 + abs(per_head("damping"))),
        ),
    ),
    "window-as-mask-ragged": ragged(variant=sliding_window(70), sm_scale=-0.1, allow_unusual_scale=True),
    "sinks-split": paged(kv_split=100, window_left=150, sinks=True, rows=40),
    "uneven-window-cap": uneven(dtype="f16", window_left=60, logits_soft_cap=9.0, rows=60),
    "uneven-split-sinks": uneven(group=4, kv_split=100, sinks=True, rows=40),
    "uneven-masked": uneven(group=4, rows=30, causal=False, variant=alibi(8), custom_mask=True),
    **{kind: descriptor for kind, descriptor in matrix.matrix().items() if "uneven" in kind},
}


def hold(descriptor, seed, impl="wgmma_tile", **more):
    subject = emulator.subject(descriptor)
    assert subject.plan.sku.impl == impl
    holding.hold(subject, seed, **more)


LENGTHS = {"short": ([20, 0, 3], [20, 0, 5]), "of-whole-tiles": ([128], [256]), "long-and-odd": ([33, 150], [33, 391])}


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("lengths", [k if k == "short" else pytest.param(k, marks=pytest.mark.heavy) for k in LENGTHS])
def test_v_may_be_narrower_than_k(lengths, group):
    q, kv = LENGTHS[lengths]
    descriptor = uneven(group, sum(q), sum(kv), len(q))
    hold(descriptor, seed=4, lengths=inputs.DrawnLengths(q=q, kv=kv))


PARTLY = 2  # a seed with which the last page of a request is partly filled
QUICK = (
    "page-1",
    "uneven-window-cap",
    "odd-group-window-cap",
    "sinks",
    "maxima-move",
    "fp8",
    "fp8-cap-window",
    "alibi-masked",
    "line-down",
    "line-of-keys",
    "varied-page-1-full",
)


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.heavy) for k in KINDS])
def test_it_keeps_its_guarantee(kind):
    hold(KINDS[kind], seed=3)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("slope", [-1234.567, 1234.567, 3e5, 1.3e8, 1.7e9])
def test_a_linear_term_of_any_slope_keeps_the_error_bound(slope, dtype):
    """If the rounding of the linear term could change an exponent, the kernel adds the term to the scores, from which it
    computes the base."""
    steep = paged(dtype=dtype, rows=20, batch=1, kv_split="off", variant=alibi(8))
    subject = emulator.subject(steep)
    for kv in (20, 150):
        args = subject.args(3, inputs.DrawnLengths(q=[20], kv=[kv]))
        args = replace(args, head_params=torch.linspace(0.7, 1.3, 8)[None] * slope)
        subject.run(args)
        assert args.o.isfinite().all()
        assert args.lse.isfinite().all()
        report = numerics.check(steep, args, subject.plan.sku, rows=20)
        assert report.worst <= 1, report


@pytest.mark.parametrize("kv_split", ["off", 200])
def test_a_linear_term_has_the_same_bits_in_any_batch(kv_split):
    """Each row and tile decides whether its slope is large, and so which of two versions of the softmax computes the
    weights."""
    subject = emulator.subject(paged(rows=40, batch=3, kv_split=kv_split, variant=alibi(8)))
    assert subject.plan.precision_guarantee.batch_invariant == "composition"
    assert metamorphic.requests_may_come_in_any_order(subject, seed=3) == []
    assert metamorphic.a_request_may_come_twice(subject, seed=4) == []


@pytest.mark.parametrize("sm_scale", [1e-50, 1e-30, 1e3])
def test_a_linear_term_with_a_scale_of_any_size_keeps_the_bound(sm_scale):
    hold(paged(rows=20, batch=1, variant=alibi(8), sm_scale=sm_scale), seed=3, lengths=inputs.DrawnLengths(q=[20], kv=[150]))


@pytest.mark.parametrize(("head_dim", "kv"), [(64, 100), (64, 120), (128, 130), (128, 150)])
def test_rows_without_visible_keys_in_their_first_tile(head_dim, kv):
    """Keys are processed from last to first, and a tile of 96 or 128 keys ends between the positions of the rows: some rows
    have no base until the next tile. The scores are so low that weights without a base would all be zero."""
    low = paged(head_dim=head_dim, rows=40, batch=1, kv_split="off", variant=Variant(logits=score - 300.0))
    hold(low, seed=5, lengths=inputs.DrawnLengths(q=[40], kv=[kv]))


@pytest.mark.parametrize(
    "kind", [*(pytest.param(k, marks=pytest.mark.heavy) for k in ("paged", "uneven-window-cap")), "page-1"]
)
def test_the_content_of_unused_memory_does_not_change_the_result(kind):
    assert structural.what_is_unused_does_not_matter(emulator.subject(KINDS[kind]), PARTLY) == []


def test_the_warps_that_check_v_may_be_late():
    """A stage is not refilled before these warps have checked it; otherwise they would wait for a phase of its barrier that has
    passed."""
    look = "      ring.wait_full(smem.v_full);\n"
    late = (look, f"      for (int turn = 0; turn < 1000; ++turn) simt::yield();\n{look}")
    with emulator.edited("kernels/attention/prefill_sm90/tma_load.cuh", late):
        hold(paged(head_dim=128, rows=40, batch=1, kv_split="off"), seed=5, lengths=inputs.DrawnLengths(q=[40], kv=[690]))


@pytest.mark.parametrize("pad", [1, 8])
def test_rows_with_any_stride_give_the_same_bits(pad):
    descriptor = KINDS["paged"]
    subject = emulator.subject(descriptor)
    args = subject.args(4)
    subject.run(args)

    def padded(t):
        return torch.empty((*t.shape[:-1], t.shape[-1] + pad), dtype=t.dtype)[..., : t.shape[-1]].copy_(t)

    same = {name: getattr(args, name) for name in ("q_indptr", "kv_indptr", "kv_indices", "last_page_len")}
    wide = {name: padded(getattr(args, name)) for name in ("q", "k_data", "v_data", "o")}
    loose = type(args)(lse=torch.empty_like(args.lse), **wide, **same)
    subject.run(loose)
    assert torch.equal(loose.o.contiguous(), args.o)
    assert torch.equal(loose.lse, args.lse)


@pytest.mark.parametrize("names", [("q",), pytest.param(("q", "k", "v", "o"), marks=pytest.mark.heavy)], ids=" ".join)
def test_threads_copy_unaligned_rows_of_q_k_or_v(names):
    """If rows of q are not aligned to 16 bytes, the kernel does not use TMA; if rows of K or V are not, threads copy words."""
    subject = emulator.subject(uneven(group=3, rows=60))
    args = subject.args(4)
    subject.run(args)
    wide = {n: torch.empty((*x.shape[:-1], x.shape[-1] + 1), dtype=x.dtype)[..., :-1].copy_(x)
            for n, x in ((n, getattr(args, n)) for n in names)}  # fmt: skip
    loose = replace(args, **({"o": torch.empty_like(args.o)} | wide), lse=torch.empty_like(args.lse))
    subject.run(loose)
    assert torch.equal(loose.o.contiguous(), args.o)
    assert torch.equal(loose.lse, args.lse)


@pytest.mark.parametrize("copied", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_a_nonfinite_value_with_narrow_v_changes_only_the_rows_that_attend_to_it(copied):
    """copied: threads copy V and check the values that they copied."""
    subject = emulator.subject(uneven(rows=40, kv_rows=40, batch=1))
    args = subject.args(6)
    if copied:
        args = replace(args, q=torch.nn.functional.pad(args.q, (0, 1))[..., :-1])
    subject.run(args)
    want = args.o.clone()
    args.v[20, 1, 100] = float("nan")
    subject.run(args)
    assert torch.equal(args.o[:20], want[:20])
    assert torch.equal(args.o[:, 0], want[:, 0])
    assert bool(args.o[20:, 1, 100].isnan().all())
    assert int(args.o.isnan().sum()) == 20


@pytest.mark.parametrize("pool", [pytest.param("k", marks=pytest.mark.heavy), "v"])
def test_a_nonfinite_key_reaches_only_the_rows_that_see_it(pool):
    check_a_nonfinite_key(ragged(window_left=70), pool)


def test_a_nonfinite_value_of_a_second_masked_tile_reaches_only_the_rows_that_see_it():
    check_a_second_masked_tile(ragged(batch_size=1, total_num_rows=128, total_kv_rows=319, num_qo_heads=2))


@pytest.mark.heavy
def test_missing_zeroing_of_values_past_the_end_is_detected():
    """Negative control: in a copy of the sources without the zeroing, unused values change the result."""
    swept = ("store_shared_16(at, make_uint4(0, 0, 0, 0));", ";")
    with emulator.edited("kernels/attention/prefill_sm90/tma_load.cuh", swept):
        assert structural.what_is_unused_does_not_matter(emulator.subject(KINDS["paged"]), PARTLY) != []


@pytest.mark.parametrize(
    "kind",
    ["paged", *(pytest.param(k, marks=pytest.mark.heavy) for k in ("page-1", "fixed-split", "uneven-split-sinks", "fp8"))],
)
def test_several_head_rounds_keep_the_guarantee(kind):
    """Each head round has one head and begins with the cheapest tiles, as with more keys than L2 can hold."""
    edits = (("kL2 = 32 * 1048576.f", "kL2 = 1.f"), ("kMinRounds = 3", "kMinRounds = 0"))
    with emulator.edited("kernels/attention/prefill_sm90/scheduler.cuh", *edits):
        hold(KINDS[kind], seed=3)
