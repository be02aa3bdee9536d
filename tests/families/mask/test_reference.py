"""pack_mask and segment_packbits: every bit agrees with numpy, attention uses the packed mask correctly, and the emulated
kernel packs every byte."""

import itertools
import random

import numpy as np
import pytest
import torch

from opfacade import Plan, Target
from opfacade.errors import ArgumentTypeError, DescriptorError, DTypeError, IndexDataError, LayoutError, ShapeError
from opfacade.plans.attention import BatchRaggedPrefillArgs, BatchRaggedPrefillDescriptor
from opfacade.plans.mask import EXAMPLES, PackMaskArgs, PackMaskDescriptor, pack_mask, segment_packbits
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.support.problems import i32, indptr, on_reference

LENGTHS = ([5], [8, 8], [0, 3, 0, 17, 0], [64, 1, 7, 9, 200, 16], [0], [1] * 70)


def packed_by_numpy(bits, lengths, order):
    ends = list(itertools.accumulate(lengths, initial=0))
    parts = [np.packbits(bits[a:b].numpy() != 0, bitorder=order) for a, b in itertools.pairwise(ends)]
    return np.concatenate([np.zeros(0, np.uint8), *parts]).tolist(), list(itertools.accumulate(map(len, parts), initial=0))


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_each_segment_is_packed_as_by_numpy(lengths, order):
    torch.manual_seed(len(lengths))
    bits = torch.rand(sum(lengths)) < 0.5
    packed, starts = segment_packbits(bits, indptr(lengths), bit_order=order)
    want, begins = packed_by_numpy(bits, lengths, order)
    assert starts.tolist() == begins
    assert packed.tolist() == want + [0] * (len(packed) - len(want))
    assert len(packed) == (sum(lengths) + 7 * len(lengths)) // 8


def test_any_nonzero_byte_is_true():
    packed, _ = segment_packbits(torch.tensor([0, 1, 2, 255, 128, 0, 0, 0, 4], dtype=torch.uint8), i32([0, 9]))
    assert packed.tolist() == [0b00011110, 1]


def test_a_mask_of_equal_requests_has_the_bits_of_its_segments():
    torch.manual_seed(2)
    mask = torch.rand(3, 5, 7) < 0.5
    packed, starts = pack_mask(mask)
    want, begins = packed_by_numpy(mask.flatten(), [35] * 3, "little")
    assert (packed.tolist(), starts.tolist()) == (want, begins)
    assert [t.numel() for t in pack_mask(torch.zeros(0, 4, 4, dtype=torch.bool))] == [0, 1]


def test_attention_with_a_packed_mask_equals_torch_with_the_mask():
    torch.manual_seed(3)
    batch, rows, keys = 2, 5, 9
    mask = torch.rand(batch, rows, keys) < 0.6
    mask[..., 0] = True
    q, k, v = torch.randn(batch * rows, 2, 8), *(torch.randn(batch * keys, 2, 8) for _ in range(2))
    packed, starts = pack_mask(mask)
    descriptor = BatchRaggedPrefillDescriptor(
        batch_size=batch, total_num_rows=batch * rows, total_kv_rows=batch * keys, num_qo_heads=2, num_kv_heads=2, head_dim=8,
        causal=False, dtype="f32", custom_mask=True, return_lse=False,
    )  # fmt: skip
    args = BatchRaggedPrefillArgs(
        q=q, k=k, v=v, q_indptr=indptr([rows] * batch), kv_indptr=indptr([keys] * batch), packed_mask=packed,
        mask_indptr=starts, o=torch.empty_like(q),
    )  # fmt: skip
    on_reference(descriptor).run(args)
    dense = [t.view(batch, -1, 2, 8).transpose(1, 2) for t in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*dense, attn_mask=mask[:, None])
    assert torch.allclose(args.o.view(batch, rows, 2, 8), want.transpose(1, 2), atol=1e-6)


def emulated(descriptor, args):
    emulator.subject(descriptor).run(args)


@emulator.needed
@pytest.mark.parametrize("descriptor", [e for e in EXAMPLES if e.num_bits < 10000], ids=lambda d: f"{d.segments}-{d.bit_order}")
@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_on_the_host_packs_every_byte(descriptor, seed):
    for one in (descriptor, descriptor.model_copy(update={"segments": "even", "num_bits": descriptor.batch_size * 83})):
        args = inputs.make_args(one, seed=seed)
        args.packed.fill_(171)
        emulated(one, args)
        report = numerics.check(one, args, Plan.select(one, target=Target.parse("sm_90a")).sku)
        assert report.worst == 0, report
        assert report.elements == one.num_bytes + one.batch_size + 1


@emulator.needed
def test_an_invalid_indptr_does_not_lead_to_access_outside_the_tensors():
    rng = random.Random(5)
    descriptor = PackMaskDescriptor(batch_size=9, num_bits=100)
    for _ in range(20):
        guarded = torch.full((descriptor.num_bytes + 128,), 171, dtype=torch.uint8)
        wrong = [rng.choice((-(2**31), -7, 0, 3, 50, 99, 100, 101, 2**31 - 1)) for _ in range(10)]
        own = guarded[64 : 64 + descriptor.num_bytes]
        args = PackMaskArgs(
            mask=torch.ones(100, dtype=torch.uint8), bits_indptr=i32(wrong), packed=own, packed_indptr=i32([0] * 10)
        )
        emulated(descriptor, args)
        assert (guarded[:64] == 171).all()
        assert (guarded[64 + descriptor.num_bytes :] == 171).all()


@pytest.mark.parametrize(
    ("starts", "told"),
    [
        ([0, 9, 30], r"indptr\[2\] expected a start in \[9, 20\], got 30"),
        ([0, 9, 4, 20], r"indptr\[2\] expected a start in \[9, 20\], got 4"),
        ([-1, 9], r"indptr\[0\] expected a start in \[0, 20\], got -1"),
    ],
)
def test_segments_that_decrease_or_exceed_the_bits_are_refused_on_the_cpu(starts, told):
    with pytest.raises(IndexDataError, match=rf"segment_packbits\.run: {told}.*OPF-V001"):
        segment_packbits(torch.ones(20, dtype=torch.bool), i32(starts))


def test_segments_may_leave_bits_unused():
    packed, starts = segment_packbits(torch.ones(20, dtype=torch.bool), i32([3, 3, 9]))
    assert (packed.tolist(), starts.tolist()) == ([63, 0, 0, 0], [0, 0, 1])


def test_masks_of_a_wrong_dtype_or_shape_are_refused():
    flat = torch.zeros(4, dtype=torch.bool)
    with pytest.raises(DTypeError, match=r"pack_mask.run: mask expected torch\.bool or torch\.uint8, got torch\.float32"):
        pack_mask(torch.zeros(1, 2, 2))
    with pytest.raises(ShapeError, match=r"mask expected shape \[batch, q_len, kv_len\], got \[4\]"):
        pack_mask(flat)
    with pytest.raises(LayoutError, match=r"mask expected a contiguous tensor"):
        pack_mask(torch.zeros(2, 3, 4, dtype=torch.bool).transpose(1, 2))
    with pytest.raises(ArgumentTypeError, match=r"bits expected a torch\.Tensor, got list"):
        segment_packbits([True], i32([0, 1]))
    with pytest.raises(LayoutError, match=r"segment_packbits.run: bits expected .* Use bits.contiguous()"):
        segment_packbits(torch.ones(8, dtype=torch.bool)[::2], i32([0, 4]))
    with pytest.raises(LayoutError, match=r"bits expected a strided dense tensor, got torch.sparse_coo"):
        segment_packbits(torch.ones(8, dtype=torch.bool).to_sparse(), i32([0, 8]))
    with pytest.raises(DTypeError, match=r"bits_indptr expected torch\.int32, got torch\.int64"):
        segment_packbits(flat, torch.tensor([0, 4]))
    with pytest.raises(ArgumentTypeError, match=r"bits_indptr expected a torch\.Tensor, got a list of 2"):
        segment_packbits(flat, [0, 4])
    with pytest.raises(DescriptorError, match="less than or equal to 2147483647"):
        PackMaskDescriptor(batch_size=1, num_bits=2**31)
