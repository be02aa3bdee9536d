"""The emulated ops of mixtures of experts (route, sort, gather, combine): bounds, unwritten bytes, edges, invalid input."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Target, explain
from opfacade.plans.moe import (
    EXAMPLES,
    MoeCombineArgs,
    MoeCombineDescriptor,
    MoeGatherDescriptor,
    MoeSortDescriptor,
    RouteDescriptor,
)
from opfacade.testing import determinism, inputs
from opfacade.testing.bits import same_bits
from tests import emulator
from tests.support.assert_guarantee import hold

pytestmark = emulator.needed
OWN = [d for d in EXAMPLES if d.op != "fused_moe" and not getattr(d, "loads", False)]
GROUPED = {"score": "sigmoid", "correction": True, "groups": 8, "top_groups": 4, "group_score": "top2", "renormalise": True}
PROBLEMS = [
    *OWN,
    RouteDescriptor(total_num_rows=33, experts=256, top_k=8, dtype="f32", scale=2.5, num_valid=True, **GROUPED),
    RouteDescriptor(total_num_rows=5, experts=1024, top_k=16, dtype="bf16", score="softmax_chosen"),
    MoeSortDescriptor(total_num_rows=300, top_k=8, experts=1024),
    MoeSortDescriptor(total_num_rows=1000, top_k=3, experts=2),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda d: f"{d.op}-{d.digest()[:6]}")
def test_it_keeps_its_guarantee(problem):
    subject = emulator.subject(problem)
    hold(subject, 0)
    hold(subject, 1, interleaved=True)


def run(problem, args):
    emulator.subject(problem).run(args)
    return args


@pytest.mark.parametrize("score", ["softmax", "softmax_chosen", "sigmoid", "sqrt_softplus"])
@pytest.mark.parametrize("groups", [1, 2])
def test_equal_logits_rank_by_id_and_nan_ranks_last(score, groups):
    nan = math.nan
    rows = [
        [1.0] * 6,
        [nan] * 6,
        [nan, 2, nan, 5, 5, nan],
        [-math.inf] * 5 + [0.0],
        [nan, 1, nan, nan, nan, 0],
        [-0.0, 0.0] * 3,
    ]
    d = RouteDescriptor(total_num_rows=6, experts=6, top_k=3, dtype="f32", score=score, groups=groups, top_groups=groups)
    args = replace(inputs.make_args(d, 0), logits=torch.tensor(rows))
    run(d, args)
    assert args.ids.tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 1], [5, 0, 1], [1, 5, 0], [0, 1, 2]]
    assert bool(args.weights[[0, 5]].isfinite().all())


@pytest.mark.parametrize("how", ["max", "top2"])
def test_experts_of_groups_that_are_not_chosen_are_never_chosen(how):
    logits = torch.tensor([[math.nan, math.nan, 0.0, -1.0, -5.0, 3.0], [2.0, math.nan, 1.0, 1.0, 0.0, 0.0]])
    fields = {"score": "sigmoid", "groups": 3, "top_groups": 1, "group_score": how}
    d = RouteDescriptor(total_num_rows=2, experts=6, top_k=2, dtype="f32", **fields)
    args = replace(inputs.make_args(d, 0), logits=logits)
    assert run(d, args).ids.tolist() == [[5, 4], [0, 1] if how == "max" else [2, 3]]


def test_a_group_of_one_expert_is_ranked_by_its_only_key():
    logits = torch.tensor([[0.5, 3.0, 1.0, 2.0], [4.0, 0.0, 0.0, -1.0]])
    fields = {"score": "sigmoid", "groups": 4, "top_groups": 2, "group_score": "top2"}
    d = RouteDescriptor(total_num_rows=2, experts=4, top_k=2, dtype="f32", **fields)
    args = replace(inputs.make_args(d, 0), logits=logits)
    assert run(d, args).ids.tolist() == [[1, 3], [0, 1]]


def test_given_ids_get_the_weights_of_the_scores_and_unknown_ids_get_zero():
    d = RouteDescriptor(total_num_rows=3, experts=5, top_k=2, dtype="f32", ids_given=True)
    args = replace(inputs.make_args(d, 1), given_ids=torch.tensor([[4, 0], [9, 1], [-1, 5]], dtype=torch.int32))
    scores = args.logits.softmax(1)
    want = torch.stack([scores[0, [4, 0]], torch.stack([scores[1, 0] * 0, scores[1, 1]]), torch.zeros(2)])
    torch.testing.assert_close(run(d, args).weights, want)


@pytest.mark.parametrize("count", [-1, 4, 2**31 - 1])
def test_no_row_is_valid_if_the_count_is_out_of_range(count):
    d = RouteDescriptor(total_num_rows=3, experts=40, top_k=2, dtype="bf16", num_valid=True)
    args = inputs.make_args(d, 1)
    args.ids.fill_(-7), args.num_valid.fill_(count)
    assert run(d, args).ids.unique().tolist() == [-7]


def test_a_sort_is_stable_and_omits_experts_of_other_ranks():
    d = MoeSortDescriptor(total_num_rows=4, top_k=2, experts=6, first_expert=2, num_local=2)
    args = replace(inputs.make_args(d, 1), ids=torch.tensor([[3, 2], [0, 3], [2, -1], [3, 99]], dtype=torch.int32))
    run(d, args)
    assert args.indptr.tolist() == [0, 2, 5]
    assert args.order.tolist() == [1, 4, 0, 3, 6, 0, 0, 0]
    assert args.x_rows.tolist() == [0, 2, 0, 1, 3, 0, 0, 0]
    assert args.places.tolist() == [[2, 0], [-1, 3], [1, -1], [4, -1]]


@pytest.mark.parametrize("rows", [0, 3])
def test_groups_are_empty_if_no_row_chooses_a_local_expert(rows):
    d = MoeSortDescriptor(total_num_rows=rows, top_k=2, experts=4, first_expert=3)
    args = replace(inputs.make_args(d, 1), ids=torch.zeros(rows, 2, dtype=torch.int32))
    run(d, args)
    assert args.indptr.tolist() == [0, 0]
    assert args.places.flatten().tolist() == [-1] * 2 * rows


def test_a_sort_of_one_expert_or_of_unequal_groups_keeps_the_order_of_rows():
    for experts, ids in ((1, torch.zeros(700, 1)), (300, torch.full((700, 1), 299.0)), (3, torch.arange(700)[:, None] % 3)):
        d = MoeSortDescriptor(total_num_rows=700, top_k=1, experts=experts)
        args = run(d, replace(inputs.make_args(d, 1), ids=ids.int()))
        assert torch.equal(args.order.long(), ids.flatten().argsort(stable=True))


def test_an_unwritten_row_is_skipped_and_not_multiplied_by_zero():
    d = MoeCombineDescriptor(total_num_rows=3, top_k=2, hidden=4, dtype="f32", add=True)
    y = torch.full((6, 4), math.nan)
    y[1], y[4] = 2.0, 5.0
    weights = torch.tensor([[0.5, 0.0], [0.0, 3.0], [0.0, 0.0]])
    place = torch.tensor([[1, -1], [6, 4], [-1, 2**31 - 1]], dtype=torch.int32)
    args = MoeCombineArgs(y=y, places=place, weights=weights, add=torch.ones(3, 4), out=torch.full((3, 4), math.nan))
    assert run(d, args).out[:, 0].tolist() == [2.0, 16.0, 1.0]


def test_entries_of_order_out_of_range_and_invalid_counts_write_nothing():
    d = MoeGatherDescriptor(total_num_rows=3, top_k=2, hidden=5, dtype="bf16", num_valid=True)
    for count, order, written in ((6, [5, 6, -1, 2**31 - 1, 0, 1], [0, 4, 5]), (7, [0] * 6, []), (-1, [0] * 6, [])):
        args = inputs.make_args(d, 1)
        args.order.copy_(torch.tensor(order)), args.num_valid.fill_(count), args.out.fill_(math.nan)
        run(d, args)
        assert (~args.out.isnan()).all(1).nonzero().flatten().tolist() == written


def test_scores_whose_sum_is_zero_give_zero_weights():
    """The sigmoid of a large negative logit is 0, and the weights are not divided by the sum 0."""
    d = RouteDescriptor(total_num_rows=3, experts=6, top_k=2, dtype="f32", score="sigmoid", renormalise=True)
    args = inputs.make_args(d, 0)
    args.logits[1] = -1000.0
    weights = run(d, args).weights
    assert weights[1].tolist() == [0.0, 0.0]
    assert torch.allclose(weights[[0, 2]].sum(-1), torch.ones(2))


@pytest.mark.parametrize("count", [-1, 0, 4, 2**31 - 1])
def test_a_number_of_replicas_out_of_range_is_treated_as_one(count):
    """In rows whose index such a count does not divide, another entry of the table would be read, or memory past it."""
    d = RouteDescriptor(total_num_rows=9, experts=12, top_k=4, dtype="f32", groups=4, top_groups=2, most_replicas=3)
    args = inputs.make_args(d, 1)
    args.num_replicas.fill_(count)
    run(d, args)
    assert torch.equal(args.physical_ids, args.replicas[args.ids.long(), 0])


def test_row_strides_of_more_than_2_31_elements():
    """Offsets have 64 bits; the rows are in a sparse memory mapping."""
    storage = torch.UntypedStorage(2**33 + 16)
    far = torch.empty(0, dtype=torch.bfloat16).set_(storage, 0, (3, 24), (2**31 - 8, 1))
    gather = MoeGatherDescriptor(total_num_rows=3, top_k=1, hidden=24, dtype="bf16")
    args = inputs.make_args(gather, 2)
    args.order.copy_(torch.tensor([2, 0, 1]))
    far.copy_(args.x)
    wanted = run(gather, args).out.clone()
    assert torch.equal(run(gather, replace(args, x=far, out=torch.zeros_like(wanted))).out, wanted)
    assert torch.equal(run(gather, replace(args, out=far)).out, wanted)
    combine = MoeCombineDescriptor(total_num_rows=3, top_k=1, hidden=24, dtype="bf16", weighted=False)
    back = MoeCombineArgs(y=far, places=torch.tensor([[1], [2], [0]], dtype=torch.int32), out=torch.zeros_like(wanted))
    assert torch.equal(run(combine, back).out, args.x)
    route = RouteDescriptor(total_num_rows=3, experts=24, top_k=2, dtype="bf16")
    chosen = inputs.make_args(route, 3)
    ids = run(route, chosen).ids.clone()
    far.copy_(chosen.logits)
    assert torch.equal(run(route, replace(chosen, logits=far)).ids, ids)


@pytest.mark.parametrize(
    "problem",
    [d for d in OWN if d.op != "moe_sort" and not getattr(d, "most_replicas", 0)],
    ids=lambda d: f"{d.op}-{d.digest()[:6]}",
)
def test_bits_of_a_row_do_not_depend_on_the_batch(problem):
    shown = determinism.batch_invariance(emulator.subject(problem), determinism.Campaign(3, 2, 4, 1), seed=1)
    assert shown.different == 0 < shown.compared


@pytest.mark.parametrize("problem", PROBLEMS[-6:], ids=lambda d: f"{d.op}-{d.digest()[:6]}")
def test_the_result_does_not_depend_on_the_order_of_the_warps(problem, monkeypatch):
    subject, args = emulator.subject(problem), inputs.make_args(problem, 5)
    other = inputs.make_args(problem, 5)
    subject.run(args)
    emulator.last_first(monkeypatch)
    subject.run(other)
    written = [name for name, spec in problem.operands().items() if spec.written]
    assert all(same_bits(getattr(args, name), getattr(other, name)) for name in written)


def test_route_with_loads_is_declined_with_a_reference_to_moe_sort():
    d = RouteDescriptor(total_num_rows=3, experts=5, top_k=2, dtype="f32", loads=True)
    assert "indptr of moe_sort" in str(explain(d, target=Target.parse("sm_90a")))
