"""Merges of shapes that pack rows into warps in different ways, in the emulator."""

import math

import pytest
import torch

from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from opfacade.testing import numerics
from tests import emulator

pytestmark = emulator.needed

# Eight, four, two rows and one row per warp; odd row lengths; more chunks per row than lanes.
SHAPES = [
    (128, "bf16"),
    (65, "f16"),
    *(
        pytest.param(dim, dtype, marks=pytest.mark.heavy)
        for dim, dtype in ((8, "f16"), (64, "bf16"), (96, "f16"), (256, "f32"), (80, "f32"), (256, "bf16"))
    ),
]


def problem(states, rows, dim, dtype, **more):
    fields = {"num_states": states, "total_num_rows": rows, "num_heads": 3, "head_dim": dim, "dtype": dtype, **more}
    return emulator.subject(MergeStatesDescriptor(**fields))


@pytest.mark.parametrize(("dim", "dtype"), SHAPES)
def test_any_number_of_states_and_rows_keeps_the_error_bound(dim, dtype):
    for states, rows in ((1, 1), (1, 9), (2, 5), (2, 19), (3, 2), (3, 17), (4, 3), (5, 11), (33, 2), (70, 1)):
        subject = problem(states, rows, dim, dtype)
        args = subject.args(states)
        subject.run(args)
        report = numerics.check(subject.descriptor, args, subject.plan.sku)
        assert report.worst <= 1, (states, rows, report)


@pytest.mark.parametrize("states", [1, 2, 3])
def test_empty_states_change_no_bit(states):
    """The kernel has separate code for few and for many states."""
    few, many = problem(states, 9, 128, "bf16"), problem(6, 9, 128, "bf16")
    args, more = few.args(states), many.args(states)
    more.states_lse.fill_(-math.inf)
    more.states_lse[:states], more.states_o[:states] = args.states_lse, args.states_o
    few.run(args), many.run(more)
    assert torch.equal(args.o, more.o)
    assert torch.equal(args.lse, more.lse)


@pytest.mark.parametrize(("dim", "dtype"), SHAPES)
def test_the_o_of_empty_states_is_not_read_and_rows_do_not_mix(dim, dtype):
    """A row without states shares a warp with a row of NaN and a row whose only state must be copied unchanged."""
    subject = problem(6, 3, dim, dtype)
    args = subject.args(1)
    args.states_o.fill_(math.nan)
    args.states_lse.fill_(-math.inf)
    args.states_lse[2, 0, 1] = 0.5
    args.states_lse[5, 1, 0] = -3.0
    args.states_o[5, 1, 0] = torch.arange(dim)
    subject.run(args)
    assert args.o[0, 1].isnan().all()
    assert torch.equal(args.o[1, 0], args.states_o[5, 1, 0])
    assert float(args.lse[1, 0]) == -3.0
    left = torch.ones(3, 3, dtype=torch.bool)
    left[0, 1] = left[1, 0] = False
    assert (args.o[left] == 0).all()
    assert (args.lse[left] == -math.inf).all()


def test_an_in_place_merge_writes_lse_after_all_lanes_have_read_the_row():
    """A lane computes two chunks of the row and loads the first state again for the second chunk."""
    apart, in_place = problem(6, 3, 256, "f32"), problem(6, 3, 256, "f32", in_place=True)
    args = apart.args(2)
    call = MergeStatesArgs(states_o=args.states_o.clone(), states_lse=args.states_lse.clone(), o=None, lse=None)
    apart.run(args), in_place.run(call)
    assert torch.equal(call.states_o[0], args.o)
    assert torch.equal(call.states_lse[0], args.lse)
