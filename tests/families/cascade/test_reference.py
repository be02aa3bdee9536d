"""The reference of merge_states against a loop over rows, and against attention over all keys."""

import math

import numpy as np
import pytest
import torch

from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from tests.support import naive_attention as naive
from tests.support.problems import bits, cache, noise, poison, prefill, run


def states(count, rows, *, heads=3, dim=5, dtype="f16", seed=0):
    torch.manual_seed(seed)
    descriptor = MergeStatesDescriptor(num_states=count, total_num_rows=rows, num_heads=heads, head_dim=dim, dtype=dtype)
    args = MergeStatesArgs(
        states_o=noise(count, rows, heads, dim, dtype=dtype), states_lse=torch.randn(count, rows, heads) * 5,
        o=poison(rows, heads, dim, dtype=dtype), lse=poison(rows, heads, dtype="f32"),
    )  # fmt: skip
    return descriptor, args


def assert_right(problem):
    _, args = run(problem)
    o, lse = naive.merge(naive.wide(args.states_o), naive.wide(args.states_lse))
    naive.assert_rounded(args.o, o, magnitude=4.0, arithmetic=1e-14)
    naive.assert_rounded(args.lse, lse, magnitude=20.0, arithmetic=1e-14)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_random_merge_equals_the_loop(count, dtype):
    problem = states(count, 7, dtype=dtype, seed=count)
    problem[1].states_lse[torch.rand(count, 7, 3) < 0.3] = -math.inf
    assert_right(problem)


def test_states_with_very_different_lse_neither_overflow_nor_become_zero():
    problem = states(3, 2)
    problem[1].states_lse.copy_(torch.tensor([-3e38, 0.0, 3e38])[:, None, None].expand(3, 2, 3))
    assert_right(problem)
    assert torch.equal(problem[1].o, problem[1].states_o[2])


def test_a_merge_of_empty_states_is_empty():
    descriptor, args = states(4, 3)
    args.states_lse.fill_(-math.inf)
    args.states_o.fill_(math.nan)
    run((descriptor, args))
    assert (args.o == 0).all()
    assert (args.lse == -math.inf).all()


def test_an_empty_state_does_not_change_the_bits_for_any_o():
    descriptor, args = states(1, 4)
    more_descriptor, more = states(2, 4)
    more.states_o.copy_(torch.stack([torch.full_like(args.states_o[0], math.nan), args.states_o[0]]))
    more.states_lse.copy_(torch.stack([torch.full_like(args.states_lse[0], -math.inf), args.states_lse[0]]))
    run((descriptor, args)), run((more_descriptor, more))
    assert torch.equal(bits(args.o), bits(more.o))
    assert torch.equal(args.lse, more.lse)


def test_a_nan_in_a_state_changes_only_its_row_and_head():
    descriptor, args = states(2, 3)
    args.states_o[0, 1, 2, 0] = math.nan
    run((descriptor, args))
    assert torch.isnan(args.o).nonzero().tolist() == [[1, 2, 0]]
    assert torch.isfinite(args.lse).all()


def test_a_merge_without_rows_is_valid():
    _, args = run(states(2, 0))
    assert args.lse.shape == (0, 3)


def test_merged_parts_of_a_context_equal_attention_over_the_context():
    """Attention over keys 0-3 and over keys 4-8, merged, equals attention over all nine keys."""
    kv = cache(dtype="f32")
    descriptor, whole = run(prefill([2], [9], causal=False, paged_kv=kv, seed=4))
    tokens = naive.locations(whole, 4)[0]
    q, k, v = naive.wide(whole.q), *(np.stack([naive.wide(p)[t] for t in tokens]) for p in (whole.k_data, whole.v_data))
    parts = [naive.attend(q, k[s], v[s], **naive.scoring(descriptor, whole)) for s in (slice(0, 4), slice(4, 9))]
    merge, args = states(2, 2, heads=4, dim=8, dtype="f32")
    args.states_o.copy_(torch.tensor(np.stack([o for o, _ in parts])))
    args.states_lse.copy_(torch.tensor(np.stack([lse for _, lse in parts])))
    run((merge, args))
    torch.testing.assert_close(args.o, whole.o, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(args.lse, whole.lse, rtol=1e-6, atol=1e-6)
