"""Appends of shapes that split rows in different ways, in the emulator: heads that do not fill a warp, odd rows, and free
strides."""

from dataclasses import replace

import pytest
import torch

from opfacade.plans._attention.paging import PagedKvCacheDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.testing import numerics
from opfacade.testing.families.attention.requests import same_bits
from tests import emulator

pytestmark = emulator.needed

HEADS = (1, 3, 8, 17)
# Head dimension, dtype of the cache, and rope; a short test run takes one case of each kind.
COPIES = [
    (128, "bf16"),
    (65, "f8_e4m3"),
    *(pytest.param(*c, marks=pytest.mark.heavy) for c in ((96, "f16"), (256, "f32"), (64, "f8_e5m2"))),
]
CHANGES = [
    (128, "f8_e4m3", {"new_dtype": "bf16", "rope": "half", "kv_scale": "head"}),
    (96, "f16", {"rope": "interleaved", "rotary_dim": 32}),
    (128, "bf16", {"rope": "half", "rope_dtype": "bf16"}),
    *(
        pytest.param(*c, marks=pytest.mark.heavy)
        for c in (
            (256, "f8_e5m2", {"new_dtype": "f16", "kv_scale": "tensor"}),
            (64, "f8_e4m3", {"new_dtype": "f32", "kv_scale": "tensor", "rope": "interleaved"}),
            (65, "f8_e4m3", {"new_dtype": "bf16", "kv_scale": "head", "rope": "half", "rotary_dim": 64}),
            (128, "f32", {"rope": "half", "rotary_dim": 72}),
            (128, "bf16", {"rope": "half", "rotary_dim": 2}),
            (128, "bf16", {"rope": "interleaved", "rope_dtype": "f16", "rotary_dim": 72}),
            (65, "f32", {"rope": "half", "rope_dtype": "bf16", "rotary_dim": 6}),
            (64, "f8_e4m3", {"new_dtype": "f16", "rope": "half", "rope_dtype": "f16", "kv_scale": "head"}),
        )
    ),
]


def problem(heads, dim, dtype, **way):
    cache = PagedKvCacheDescriptor(num_total_pages=20, page_size=4, num_kv_heads=heads, head_dim=dim, dtype=dtype, layout="NHD")
    return emulator.subject(PagedKvAppendDescriptor(batch_size=3, total_num_rows=11, paged_kv=cache, **way))


def hold(subject, args):
    before = (args.k_data.clone(), args.v_data.clone())
    subject.run(args)
    report = numerics.check(subject.descriptor, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report


def shifted(tensor, by):
    """The same values in rows that are longer by `by` elements and begin `by` elements later."""
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + by), 0, dtype=tensor.dtype)
    wide[..., by:] = tensor
    return wide[..., by:]


@pytest.mark.parametrize(("dim", "dtype"), COPIES)
def test_copies_of_any_number_of_heads_are_exact(dim, dtype):
    for heads in HEADS:
        subject = problem(heads, dim, dtype)
        hold(subject, subject.args(heads))


@pytest.mark.parametrize(("dim", "dtype", "way"), CHANGES)
def test_rotated_or_quantised_rows_of_any_number_of_heads_are_right(dim, dtype, way):
    for heads in HEADS:
        subject = problem(heads, dim, dtype, **way)
        hold(subject, subject.args(heads))


@pytest.mark.parametrize("way", [{}, {"rope": "half"}], ids=["copied", "rotated"])
@pytest.mark.parametrize("names", [("k_new",), ("v_data",), ("k_new", "v_new", "k_data", "v_data")], ids="-".join)
@pytest.mark.parametrize("by", [1, 8])
def test_any_stride_and_alignment_gives_the_same_bits(way, names, by):
    subject = problem(3, 128, "bf16", **way)
    args = subject.args(5)
    moved = replace(args, **{name: shifted(getattr(args, name), by) for name in names})
    hold(subject, args)
    hold(subject, moved)
    for name in ("k_data", "v_data"):
        assert same_bits(getattr(moved, name).contiguous(), getattr(args, name).contiguous())


def test_an_unaligned_angle_table_gives_the_same_bits():
    subject = problem(3, 128, "bf16", rope="half")
    args, moved = subject.args(5), subject.args(5)
    moved = replace(moved, cos_sin_cache=shifted(moved.cos_sin_cache, 1))
    hold(subject, args)
    hold(subject, moved)
    assert same_bits(moved.k_data, args.k_data)


@pytest.mark.parametrize(("rope", "rope_dtype"), [("half", "bf16"), ("interleaved", "f16")])
def test_an_f16_or_bf16_angle_table_gives_the_bits_of_its_f32_copy(rope, rope_dtype):
    narrow, wide = problem(3, 128, "bf16", rope=rope, rope_dtype=rope_dtype), problem(3, 128, "bf16", rope=rope)
    args, other, moved = narrow.args(5), wide.args(5), narrow.args(5)
    other = replace(other, cos_sin_cache=args.cos_sin_cache.float())
    moved = replace(moved, cos_sin_cache=shifted(moved.cos_sin_cache, 1))
    narrow.run(args), wide.run(other), narrow.run(moved)
    assert same_bits(args.k_data, other.k_data)
    assert same_bits(args.k_data, moved.k_data)
