"""Merges whose states per row come from an indptr: they equal merges of stacked states, and a row without states is empty."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade import plan as plans
from opfacade.errors import ArgumentError, DescriptorError, IndexDataError
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.subject import Subject
from tests import emulator
from tests.support.problems import noise, on_reference, poison

COUNTS = (1, 0, 5, 2, 40, 0, 3)


def ragged(counts, *, heads=3, dim=5, dtype="f16", seed=0):
    """A merge of counts[r] states for row r; three of ten entries are empty, with NaN as o."""
    torch.manual_seed(seed)
    entries, rows = sum(counts), len(counts)
    descriptor = MergeStatesDescriptor(
        num_states=entries, total_num_rows=rows, num_heads=heads, head_dim=dim, dtype=dtype, states="ragged"
    )
    o, lse = noise(entries, heads, dim, dtype=dtype), torch.randn(entries, heads) * 5
    empty = torch.rand(entries, heads) < 0.3
    o[empty], lse[empty] = math.nan, -math.inf
    indptr = torch.tensor([0, *counts]).cumsum(0).int()
    outputs = {"o": poison(rows, heads, dim, dtype=dtype), "lse": poison(rows, heads, dtype="f32")}
    return descriptor, MergeStatesArgs(states_o=o, states_lse=lse, states_indptr=indptr, **outputs)


def by_rows(descriptor, args):
    """o and lse, computed in f64 one row at a time."""
    o, lse = torch.zeros(args.o.shape, dtype=torch.float64), torch.full(args.lse.shape, -math.inf, dtype=torch.float64)
    indptr = args.states_indptr.clamp(0, descriptor.num_states).tolist()
    for row, (first, stop) in enumerate(pairwise(indptr)):
        for head in range(descriptor.num_heads):
            there = [s for s in range(first, stop) if args.states_lse[s, head] != -math.inf]
            if there:
                lse[row, head] = args.states_lse[there, head].double().logsumexp(0)
                weights = (args.states_lse[there, head].double() - lse[row, head]).exp()
                o[row, head] = weights @ args.states_o[there, head].double()
    return o, lse


def assert_right(descriptor, args, exact=0.0):
    """Asserts that o differs by at most one rounding plus the relative error `exact` of the arithmetic before the rounding."""
    o, lse = by_rows(descriptor, args)
    assert bool((args.o[o == 0] == 0).all())
    rounded = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-22}[descriptor.dtype]
    torch.testing.assert_close(args.o.double(), o, rtol=rounded, atol=1e-6 + 4 * exact)
    torch.testing.assert_close(args.lse.double(), lse, rtol=1e-6 + exact, atol=1e-6 + exact)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_each_row_merges_its_own_states(dtype):
    descriptor, args = ragged(COUNTS, dtype=dtype)
    on_reference(descriptor).run(args)
    assert_right(descriptor, args)
    assert bool((args.lse[1] == -math.inf).all())


def test_ranges_of_states_are_clamped_to_the_tensor():
    """Entries outside the tensor select no state, and a range that ends before it begins is empty."""
    descriptor, args = ragged((3, 4, 2))
    args = replace(args, states_indptr=torch.tensor([-7, 5, 2, 2**31 - 1], dtype=torch.int32))
    on_reference(descriptor).run(args)
    assert_right(descriptor, args)
    assert bool((args.lse[1] == -math.inf).all())


def test_ragged_states_cannot_be_merged_in_place():
    with pytest.raises(DescriptorError, match=r"in_place expected False with states='ragged', got True.*OPF-D"):
        MergeStatesDescriptor(
            num_states=2, total_num_rows=1, num_heads=1, head_dim=8, dtype="f16", states="ragged", in_place=True
        )


@pytest.mark.parametrize(("values", "error"), [([0, 3, 2, 9], ArgumentError), ([0, 3, 7, 10], IndexDataError)])
def test_validation_level_full_refuses_an_indptr_that_decreases_or_is_too_large(monkeypatch, values, error):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    monkeypatch.setattr(plans, "_selected", {})
    descriptor, args = ragged((3, 4, 2))
    args = replace(args, states_indptr=torch.tensor(values, dtype=torch.int32))
    with pytest.raises(error, match="states_indptr"):
        Plan.select(descriptor, Preference(backend="reference")).run(args)


def test_ragged_states_have_their_own_sku_id():
    descriptor = ragged(COUNTS, dim=64)[0]
    fields = descriptor.model_dump() | {"states": "stacked"}
    ids = [
        Plan.select(MergeStatesDescriptor.model_validate(given), Preference(backend="cuda"), Target.parse("sm_90a")).sku.id
        for given in (descriptor.model_dump(), fields)
    ]
    assert "states=ragged" in ids[0]
    assert "ragged" not in ids[1]


# Eight rows and two rows per warp, rows with idle lanes, and more chunks per row than lanes.
SHAPES = [(128, "bf16"), (65, "f16"), *(pytest.param(*s, marks=pytest.mark.heavy) for s in ((8, "f16"), (256, "f32")))]


@emulator.needed
@pytest.mark.parametrize(("dim", "dtype"), SHAPES)
def test_the_kernel_merges_the_states_of_each_row(dim, dtype):
    for counts in (COUNTS, (0, 0), (70,), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
        if sum(counts) == 0:
            continue
        descriptor, args = ragged(counts, dim=dim, dtype=dtype)
        subject = emulator.subject(descriptor)
        subject.run(args)
        assert_right(descriptor, args, exact=1e-5)
        assert numerics.check(descriptor, args, subject.plan.sku).worst <= 1


@emulator.needed
def test_the_kernel_reads_no_state_outside_its_tensor():
    """The memory holds more states than the tensor."""
    descriptor, args = ragged((3, 4, 2), dim=128, dtype="bf16")
    indptr = torch.tensor([-7, 5, 2, 12], dtype=torch.int32)
    o, lse = torch.ones(12, 3, 128, dtype=torch.bfloat16), torch.full((12, 3), 9.0)
    o[:9], lse[:9] = args.states_o, args.states_lse
    args = replace(args, states_o=o[:9], states_lse=lse[:9], states_indptr=indptr)
    emulator.subject(descriptor).run(args)
    assert_right(descriptor, args, exact=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(("dim", "dtype"), [(128, "bf16"), (65, "f16"), (256, "f32")])
def test_the_kernel_merges_the_states_of_each_row_on_a_gpu(dim, dtype):
    descriptor, args = ragged(COUNTS * 50, dim=dim, dtype=dtype)
    names = ("states_o", "states_lse", "states_indptr", "o", "lse")
    here = replace(args, **{name: getattr(args, name).cuda() for name in names})
    Subject(descriptor, "cuda", "cuda").run(here)
    args.o.copy_(here.o), args.lse.copy_(here.lse)
    assert_right(descriptor, args, exact=1e-5)


@pytest.mark.parametrize("rows", [0, 3])
def test_rows_are_empty_if_no_row_has_a_state(rows):
    sizes = {"num_states": 2, "total_num_rows": rows, "num_heads": 2, "head_dim": 8, "dtype": "f32"}
    descriptor = MergeStatesDescriptor(**sizes, states="ragged")
    args = inputs.make_args(descriptor, seed=1)
    args.states_indptr.zero_()
    Plan.select(descriptor, target=Target.cpu()).run(args)
    assert torch.equal(args.o, torch.zeros(rows, 2, 8))
    assert torch.equal(args.lse, torch.full((rows, 2), -torch.inf))
