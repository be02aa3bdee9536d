"""Overlap of strided views, against the sets of elements they touch."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade.core.overlap import extent, overlaps, self_overlaps

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def views(draw, shape=None, stride=None):
    """(shape, stride, offset) with positive strides."""
    shape = shape or draw(shapes)
    stride = stride or draw(st.lists(st.integers(1, 12), min_size=len(shape), max_size=len(shape)))
    return tuple(shape), tuple(stride), draw(st.integers(0, 60))


def elements(view):
    shape, stride, offset = view
    return [offset + sum(i * s for i, s in zip(index, stride, strict=True)) for index in itertools.product(*map(range, shape))]


def tensor(buffer, view):
    return buffer.as_strided(*view)


BUFFER = torch.zeros(4096, dtype=torch.int16)


@given(views())
def test_extent_is_the_last_element_reached(view):
    shape, stride, offset = view
    assert extent(shape, stride) == max(elements(view)) - offset + 1


@given(views())
def test_a_view_said_not_to_overlap_itself_does_not(view):
    shape, stride, _ = view
    touched = elements(view)
    if len(set(touched)) < len(touched):
        assert self_overlaps(shape, stride)


@given(shapes, st.data())
def test_ordinary_views_are_not_said_to_overlap_themselves(shape, data):
    """Users pass permutations of a dense tensor, cut along any dimension."""
    order = data.draw(st.permutations(range(len(shape))))
    padded = [n + data.draw(st.integers(0, 2)) for n in shape]
    dense = torch.zeros(padded).permute(order)
    cut = dense[tuple(slice(0, shape[d]) for d in order)]
    assert not self_overlaps(cut.shape, cut.stride())


@settings(max_examples=300)
@given(st.data())
def test_views_of_one_shape_and_stride_are_judged_exactly(data):
    first = data.draw(views())
    second = data.draw(views(shape=list(first[0]), stride=list(first[1])))
    share = bool(set(elements(first)) & set(elements(second)))
    said = overlaps(tensor(BUFFER, first), tensor(BUFFER, second))
    assert said or not share
    if not self_overlaps(first[0], first[1]):
        assert said == share


@settings(max_examples=300)
@given(views(), views())
def test_two_views_said_to_be_apart_are_apart(first, second):
    share = bool(set(elements(first)) & set(elements(second)))
    said = overlaps(tensor(BUFFER, first), tensor(BUFFER, second))
    assert said or not share
    assert said == overlaps(tensor(BUFFER, second), tensor(BUFFER, first))


@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 40), st.integers(1, 9))
def test_contiguous_intervals_are_judged_exactly(start, size, other, other_size):
    share = bool(set(range(start, start + size)) & set(range(other, other + other_size)))
    assert overlaps(BUFFER[start : start + size], BUFFER[other : other + other_size]) == (share)


def test_neighbours_that_touch_do_not_overlap():
    assert not overlaps(BUFFER[0:8], BUFFER[8:16])
    assert overlaps(BUFFER[0:9], BUFFER[8:16])


def test_elements_of_different_size_are_compared_in_bytes():
    assert overlaps(BUFFER[3:4], BUFFER[:4].view(torch.int32)[1:2])
    assert not overlaps(BUFFER[1:2], BUFFER[:4].view(torch.int32)[1:2])


def test_half_an_element_apart_is_an_overlap():
    """Same shape and stride in elements, but shifted by half an element."""
    raw = torch.zeros(64, dtype=torch.uint8)
    assert overlaps(raw[0:8].view(torch.int32), raw[4:12].view(torch.int32))
    half = torch.zeros(66, dtype=torch.uint8)
    a, b = half[:64].view(torch.int16), half[1:65]
    assert overlaps(a, b)


def test_interleaved_keys_and_values_do_not_overlap():
    buffer = torch.zeros(6, 4, 2, 2, 8)
    k, v = buffer[:, :, :, 0], buffer[:, :, :, 1]
    assert not overlaps(k, v)
    assert overlaps(k, k[:])
    assert not overlaps(k.transpose(1, 2), v.transpose(1, 2))


def test_separate_memory_never_overlaps():
    assert not overlaps(torch.zeros(8), torch.zeros(8))
    assert not overlaps(torch.zeros(8), torch.zeros(8, device="meta"))


@settings(max_examples=300)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 40), st.integers(1, 14))
def test_columns_of_one_matrix_are_judged_exactly(rows, others, width, more, offset, step):
    """Rows at one stride: q and k of one qkv tensor, for any number of rows."""
    first, second = ((rows, width), (step, 1), 0), ((others, more), (step, 1), offset)
    said = overlaps(tensor(BUFFER, first), tensor(BUFFER, second))
    share = bool(set(elements(first)) & set(elements(second)))
    assert said or not share
    if width <= step and more <= step and rows == others:
        lies = offset % step >= width and offset % step + more <= step
        assert not (said and lies)


def test_queries_and_keys_of_one_tensor_do_not_overlap():
    qkv = torch.zeros(4, 8, 16)
    q, k, both = qkv[:, :5], qkv[:, 5:7], qkv[:, 4:7]
    assert not overlaps(q, k)
    assert not overlaps(k, q)
    assert overlaps(q, both)
    assert overlaps(both, k)
    assert overlaps(q, qkv.view(2, 16, 16)[:, 9:])


@pytest.mark.parametrize(
    ("first", "second", "wanted"), [(2, 0, True), (0, 2, True), (1, 0, True), (4, 0, False), (0, 8, False)]
)
def test_elements_that_share_a_part_of_themselves_overlap(first, second, wanted):
    """Elements of 4 bytes, 16 apart, begin at these bytes."""
    memory = bytearray(128)
    one, other = (torch.frombuffer(memory, dtype=torch.float32, offset=at, count=20)[::4] for at in (first, second))
    assert overlaps(one, other) is wanted
    assert overlaps(other, one) is wanted


@pytest.mark.parametrize(("width", "shared"), [(8, False), (9, True), (12, True)])
def test_columns_of_elements_of_two_sizes_are_measured_in_bytes(width, shared):
    """Rows of 128 bytes: i16 in the first 96, then f32; more than eight f32 elements overlap the next row."""
    rows = torch.zeros(4 * 128, dtype=torch.uint8)
    narrow = rows.view(torch.int16).view(4, 64)[:, :48]
    wide = rows.view(torch.float32).as_strided((3, width), (32, 1), 24)
    assert overlaps(narrow, wide) == overlaps(wide, narrow) == shared
