"""lax slices whose start is in a tensor: any start, also starts that lax clamps, against torch's slices."""

import itertools

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.errors import DescriptorError
from opfacade.recipes import lax, shaped
from tests import emulator
from tests.recipes import opinfo

X = torch.arange(35.0).view(5, 7)
STARTS = list(itertools.product((-9, -1, 0, 1, 3, 4, 99), (0, 2, 5, 7)))


def ran(made, run=None, **tensors):
    args = opinfo.bundle(made, tensors)
    (run or Plan.select(made, Preference(backend="reference")).run)(args)
    return made.written(args)[0]


def clamped(start, room):
    return min(max(start, 0), room)


@pytest.mark.parametrize("size", [(2, 3), (5, 7), (1, 0), (5, 1)])
def test_a_slice_begins_where_the_tensor_says_and_lies_inside(size):
    made = lax.dynamic_slice(X, torch.zeros(2, dtype=torch.int64), size)
    for start in STARTS:
        i, j = (clamped(a, n - m) for a, n, m in zip(start, X.shape, size, strict=True))
        got = ran(made, operand=X, start_indices=torch.tensor(start))
        assert torch.equal(got, X[i : i + size[0], j : j + size[1]]), start


@pytest.mark.parametrize("size", [(2, 3), (5, 7), (2, 0), (1, 7)])
def test_an_update_replaces_a_part_and_leaves_the_rest(size):
    new = -1 - torch.arange(float(size[0] * size[1])).view(size)
    made = lax.dynamic_update_slice(X, new, torch.zeros(2, dtype=torch.int32))
    for start in STARTS:
        i, j = (clamped(a, n - m) for a, n, m in zip(start, X.shape, size, strict=True))
        want = X.clone()
        want[i : i + size[0], j : j + size[1]] = new
        got = ran(made, operand=X, update=new, start_indices=torch.tensor(start, dtype=torch.int32))
        assert torch.equal(got, want), start


def test_a_slice_along_one_axis_and_of_narrow_dtypes():
    for axis, start in itertools.product((0, 1, -1), (-3, 0, 1, 50)):
        made = lax.dynamic_slice_in_dim(X.bfloat16(), torch.zeros((), dtype=torch.int32), 3, axis)
        got = ran(made, operand=X.bfloat16(), start_index=torch.tensor(start, dtype=torch.int32))
        assert torch.equal(got, X.bfloat16().narrow(axis, clamped(start, X.shape[axis] - 3), 3))


def test_places_and_sizes_are_no_part_of_a_kernel():
    at = shaped(2, dtype="i64")
    plans = [
        Plan.select(made, Preference(backend="cuda"), Target.parse("sm_90a"))
        for made in (lax.dynamic_slice(X, at, (2, 3)), lax.dynamic_slice(shaped(9, 8, dtype="f32"), at, (4, 4)))
    ]
    assert plans[0].jit_spec == plans[1].jit_spec


@emulator.needed
def test_a_kernel_slices_and_updates_at_the_places_of_a_tensor():
    at, new = torch.tensor([4, 99]), -torch.ones(3, 2)
    cut, put = lax.dynamic_slice(X, at, (3, 2)), lax.dynamic_update_slice(X, new, at)
    assert torch.equal(ran(cut, emulator.subject(cut).run, operand=X, start_indices=at), X[2:, 5:])
    want = X.clone()
    want[2:, 5:] = -1
    assert torch.equal(ran(put, emulator.subject(put).run, operand=X, update=new, start_indices=at), want)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: lax.dynamic_slice(X, shaped(3, dtype="i64"), (1, 1)), "start_indices"),
        (lambda: lax.dynamic_slice(X, shaped(2, dtype="f32"), (1, 1)), "index"),
        (lambda: lax.dynamic_slice(X, shaped(2, dtype="i64"), (6, 1)), "slice_sizes"),
        (lambda: lax.dynamic_update_slice(X, shaped(6, 1, dtype="f32"), shaped(2, dtype="i64")), "update"),
        (lambda: lax.dynamic_update_slice(X, shaped(1, 1, dtype="bf16"), shaped(2, dtype="i64")), "update"),
        (lambda: lax.dynamic_slice_in_dim(X, shaped(2, dtype="i64"), 1), "start_index"),
        (lambda: lax.dynamic_slice_in_dim(X, shaped(1, dtype="i64"), 8, 1), "slice_size"),
    ],
)
def test_a_slice_without_a_meaning_is_refused(make, argument):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert caught.value.issues[0].argument == argument
