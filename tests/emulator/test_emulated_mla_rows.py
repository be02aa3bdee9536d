"""Latent decode with several query rows per request in the emulator: rows and heads in one tile, a mask per row, splits."""

from dataclasses import replace

import pytest
import torch

from opfacade.testing.batches import changed
from opfacade.testing.families.attention import metamorphic, structural
from opfacade.testing.families.attention.oracle import token_places
from opfacade.testing.families.attention.requests import Requests, same_bits
from opfacade.testing.inputs import DrawnLengths
from tests import emulator
from tests.emulator.test_emulated_mla import SmallDevice, hold, latent

pytestmark = emulator.needed

KINDS = [
    pytest.param(latent(16, 16, 3, q_len=2), [300, 0, 65], id="two-rows-in-half-a-tile"),
    pytest.param(latent(16, 64, 2, q_len=5, kv_split="off"), [129, 63], id="five-rows-in-two-head-blocks"),
    pytest.param(latent(128, 64, 2, 300, q_len=2, kv_split="off"), [97, 2], id="four-head-blocks"),
    pytest.param(latent(24, 16, 2, q_len=3, page_table="block"), [200, 34], id="heads-in-boxes-of-8"),
    pytest.param(latent(5, 16, 3, q_len=4, dtype="f16"), [130, 3, 0], id="heads-that-no-box-has"),
    pytest.param(latent(8, 5, 2, 400, q_len=7), [150, 6], id="pages-of-5"),
    pytest.param(latent(16, 16, 2, q_len=6, window_left=40, kv_split="off"), [150, 33], id="window", marks=pytest.mark.heavy),
    pytest.param(
        latent(48, 8, 2, 900, q_len=2, window_left=0, kv_split=100, page_table="block"), [500, 131], id="window-of-one"
    ),
    pytest.param(
        latent(20, 16, 2, 900, q_len=4, kv_split=64, window_left=90, logits_soft_cap=8.0, sinks=True), [400, 130],
        id="fixed-split-window-cap-sinks",
    ),
    pytest.param(latent(16, 16, 2, q_len=3, causal=False, window_left=50, return_lse=False), [200, 40], id="not-causal"),
    pytest.param(latent(2, 16, 2, 300, q_len=70), [130, 50], id="more-rows-than-keys-in-three-head-blocks"),
    pytest.param(latent(16, 16, 2, 300, q_len=2, sm_scale=-0.1, allow_unusual_scale=True), [100, 33], id="negative-scale"),
]  # fmt: skip


@pytest.mark.parametrize(("descriptor", "kv"), KINDS)
def test_it_keeps_its_guarantee(descriptor, kv):
    hold(emulator.subject(descriptor), kv=kv)


@pytest.mark.parametrize("sms", [1, pytest.param(2, marks=pytest.mark.heavy), 5])
@pytest.mark.parametrize("kv", [[64] * 5, [700, 1, 0, 130]], ids=str)
def test_every_ratio_of_requests_to_ctas_keeps_the_guarantee(sms, kv):
    hold(SmallDevice(latent(32, 16, len(kv), 1300, q_len=3), "cuda", "cpu", sms=sms), kv=kv)


@pytest.mark.parametrize("length", [31, 32, 33, 34, 63, 64, 65, 66, 67])
def test_the_last_keys_may_begin_a_tile(length):
    hold(emulator.subject(latent(16, 64, 1, 128, q_len=4, kv_split="off")), kv=[length])


@pytest.mark.parametrize(
    "descriptor",
    [latent(batch=3, q_len=3), latent(70, 5, 2, 400, q_len=2, kv_split=64, window_left=100)],
    ids=["boxes", "threads"],
)
@pytest.mark.parametrize("check", structural.CHECKS, ids=lambda check: check.__name__)
def test_latent_decode_of_several_rows_passes_the_exact_checks(descriptor, check):
    assert check(emulator.subject(descriptor), 3) == []


@pytest.mark.heavy
@pytest.mark.parametrize("check", metamorphic.CHECKS, ids=lambda check: check.__name__)
def test_equivalent_calls_give_the_same_result(check):
    assert check(emulator.subject(latent(batch=3, q_len=3, kv_split=128)), 3) == []


@pytest.mark.parametrize("split", ["off", 64])
def test_a_request_does_not_see_its_batch(split):
    subject = emulator.subject(latent(16, 16, 3, 900, q_len=3, kv_split=split))
    args = subject.args(5, DrawnLengths(kv=[300, 0, 65]))
    subject.run(args)
    for request in range(3):
        descriptor, alone = Requests(subject.descriptor, args).batch([request])
        subject.on(descriptor).run(alone)
        rows = slice(3 * request, 3 * request + 3)
        assert same_bits(alone.o, args.o[rows])
        assert same_bits(alone.lse, args.lse[rows])


@pytest.mark.parametrize("axis", ["rows", "heads"])
def test_q_may_be_a_transposed_view_and_o_may_have_gaps(axis):
    """q is [rows, heads, 512] or a view of [heads, rows, 512], the result of a batched product."""
    subject = emulator.subject(latent(16, 16, 2, q_len=3))
    args = subject.args(4)
    subject.run(args)
    moved = args.q_nope.transpose(0, 1).contiguous().transpose(0, 1) if axis == "heads" else args.q_nope
    gap = torch.empty(args.o.shape[0], 17, 520, dtype=args.o.dtype)[:, 1:, :512]
    other = replace(args, q_nope=moved, o=gap, lse=torch.empty_like(args.lse))
    subject.run(other)
    assert same_bits(other.o.contiguous(), args.o)
    assert same_bits(other.lse, args.lse)


@pytest.mark.parametrize("causal", [True, False])
def test_each_row_has_the_bits_of_a_request_with_one_row(causal):
    """Without a split, a row has the bits of a request that has only this row, the same pages, and the keys visible
    to the row."""
    subject = emulator.subject(latent(16, 16, 2, q_len=3, kv_split="off", page_table="block", causal=causal))
    args = subject.args(7, DrawnLengths(kv=[100, 66]))
    subject.run(args)
    after = torch.tensor([2, 1, 0] * 2 if causal else [0] * 6, dtype=torch.int32)
    apart = replace(
        args, block_table=args.block_table.repeat_interleave(3, 0), kv_lens=args.kv_lens.repeat_interleave(3) - after,
        o=torch.empty_like(args.o), lse=torch.empty_like(args.lse),
    )  # fmt: skip
    one = changed(subject.descriptor, batch_size=6, q_len=1, causal=True, max_kv_indices=200)
    emulator.subject(one).run(apart)
    assert same_bits(apart.o, args.o)
    assert same_bits(apart.lse, args.lse)


WILD = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("value", WILD)
@pytest.mark.parametrize("pool", ["ckv", "kpe"])
@pytest.mark.parametrize(("window", "place"), [(-1, 97), (20, 76)], ids=["behind", "before-the-window"])
def test_a_nonfinite_key_reaches_only_the_rows_that_see_it(pool, value, window, place):
    """Rows 0 to 3 attend to the first 97 to 100 of 100 keys; with a window of 20, to the keys from 76 to 79 on."""
    subject = emulator.subject(latent(16, 16, 2, q_len=4, window_left=window))
    args = subject.args(6, DrawnLengths(kv=[100, 90]))
    subject.run(args)
    want = args.o.clone()
    page, slot = (int(at[place]) for at in token_places(subject.descriptor, args, 0))
    getattr(args, pool)[page, slot, 5] = value
    subject.run(args)
    sees = [row < 4 and (place <= 96 + row and (window < 0 or place >= 96 + row - window)) for row in range(8)]
    assert any(sees)
    assert not all(sees[:4])
    for row, seen in enumerate(sees):
        if not seen:
            assert same_bits(args.o[row], want[row])
        elif value != value:
            assert bool(args.o[row].isnan().all())
        elif pool == "ckv":
            assert not bool(args.o[row].isfinite().all(-1).any())


FAULTS = {
    "a row sees the key behind it": (
        "kernels/mla/math.cuh",
        "item.first_row_end + (first_row_of_block<C>() + row)",
        "item.first_row_end + 1 + (first_row_of_block<C>() + row)",
    ),
    "rows are counted from the head block": ("kernels/mla/math.cuh", "(first_row_of_block<C>() + row) /", "row /"),
    "all rows see what the last one sees": (
        "kernels/mla/math.cuh",
        "C::kCausal ? min(item.end, end) : item.end};",
        "item.end};",
    ),
    "a hidden value that is not finite stays": (
        "kernels/mla/math.cuh",
        "found |= 1u << token;",
        "found |= 1u << token; continue;",
    ),
    "rows swapped": (
        "kernels/attention/decode/output.cuh",
        "C::kQueryRows + query_row) * row_stride",
        "C::kQueryRows + (query_row ^ 1)) * row_stride",
    ),
    "queries of the next request": (
        "kernels/mla/load.cuh",
        "item.request * C::kQueryRows + (head + i) / kHeads",
        "(item.request ^ 1) * C::kQueryRows + (head + i) / kHeads",
    ),
    "the window of the last row for all": (
        "kernels/mla/load.cuh",
        "kv_len - 1 - p.base.window_left + first / kHeads",
        "kv_len - 1 - p.base.window_left + C::kQueryRows - 1",
    ),
}


def hold_all(subject):
    hold(subject, kv=[100, 90])
    test_a_nonfinite_key_reaches_only_the_rows_that_see_it("ckv", float("nan"), -1, 97)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_detected(fault):
    """Negative control: each fault is planted in a copy of the sources."""
    name, right, wrong = FAULTS[fault]
    subject = emulator.subject(latent(32, 16, 2, q_len=4, window_left=50, kv_split="off"))
    with emulator.edited(name, (right, wrong)), pytest.raises((AssertionError, RuntimeError)):
        hold_all(subject)
