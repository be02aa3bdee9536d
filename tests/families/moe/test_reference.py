"""Mixtures of experts: routers against those of transformers, sorts and sums against loops, edge cases and refusals."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, load_descriptor
from opfacade.errors import ArgumentError, DescriptorError, IndexDataError
from opfacade.plan import forget_selections
from opfacade.plans.matmul import GroupedMatmulArgs, GroupedMatmulDescriptor, GroupedMatmulPlan
from opfacade.plans.moe import (
    EXAMPLES,
    MoeCombineArgs,
    MoeCombineDescriptor,
    MoeGatherDescriptor,
    MoeSortArgs,
    MoeSortDescriptor,
    RouteArgs,
    RouteDescriptor,
)
from opfacade.testing import inputs, numerics


def ran(d, args):
    Plan.select(d).run(args)
    return args


def i32(values):
    return torch.tensor(values, dtype=torch.int32)


def routed(logits, **fields):
    rows, experts = logits.shape
    more = {name: fields.pop(name) for name in ("bias", "correction", "given_ids") if name in fields}
    given = "given_ids" in more
    flags = {name: True for name in ("bias", "correction") if name in more} | ({"ids_given": True} if given else {})
    d = RouteDescriptor(total_num_rows=rows, experts=experts, dtype="f32", **fields, **flags)
    made = {"weights": torch.full((rows, d.top_k), math.nan)}
    made |= {} if given else {"ids": i32([[-7] * d.top_k] * rows)}
    args = ran(d, RouteArgs(logits=logits, **(made | more)))
    return None if given else args.ids.long(), args.weights


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: f"{d.op}-{d.digest()[:6]}")
def test_it_keeps_its_bound(descriptor):
    plan = Plan.select(descriptor)
    for seed in range(2):
        args = inputs.make_args(descriptor, seed=seed)
        before = numerics.snapshot(descriptor, args)
        plan.run(args)
        assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
    assert load_descriptor(descriptor.canonical_json()) == descriptor


def router(name, config, weight, bias=None):
    """(weights, ids) of a router of transformers, with logits as its input."""
    module = __import__(f"transformers.models.{name[0]}.modeling_{name[0]}", fromlist=[name[1]])
    made = getattr(module, name[1])(config)
    with torch.no_grad():
        made.weight.copy_(weight)
        if bias is not None:
            (made.bias if hasattr(made, "bias") else made.e_score_correction_bias).copy_(bias)

    def of(logits):
        _, scores, ids = made(logits)
        return scores.detach(), ids

    return of


class Config:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def by_expert(ids, weights, experts):
    """The weights as [rows, experts], which does not depend on the order of the choices."""
    return torch.zeros(len(ids), experts).scatter(1, ids, weights.float())


@pytest.mark.parametrize(
    ("name", "config", "fields"),
    [
        (("mixtral", "MixtralTopKRouter"), {}, {"renormalise": True}),
        (("qwen3_moe", "Qwen3MoeTopKRouter"), {"num_experts": 16, "norm_topk_prob": False}, {}),
        (("gpt_oss", "GptOssTopKRouter"), {}, {"score": "softmax_chosen", "bias": True}),
        (
            ("deepseek_v3", "DeepseekV3TopkRouter"),
            {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
            {"score": "sigmoid", "correction": True, "groups": 4, "top_groups": 2, "group_score": "top2",
             "renormalise": True, "scale": 2.5},
        ),
    ],
    ids=["mixtral", "qwen3", "gpt-oss", "deepseek"],
)  # fmt: skip
def test_routers_of_transformers_make_the_same_choices(name, config, fields):
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    logits, bias = torch.randn(200, 16), torch.randn(16)
    sizes = {"num_experts_per_tok": 3, "num_local_experts": 16, "hidden_size": 16}
    named = [field for field in ("bias", "correction") if fields.pop(field, False)]
    want, ids = router(name, Config(**sizes, **config), torch.eye(16), bias if named else None)(logits)
    got, weights = routed(logits, top_k=3, **fields, **dict.fromkeys(named, bias))
    torch.testing.assert_close(by_expert(got, weights, 16), by_expert(ids, want, 16))


def test_the_sqrt_softplus_score_equals_its_formula():
    logits = torch.tensor([[0.0, 3.0, -60.0, 90.0]])
    ids, weights = routed(logits, top_k=4, score="sqrt_softplus")
    assert ids.tolist() == [[3, 1, 0, 2]]
    want = [math.sqrt(90.0), math.sqrt(math.log1p(math.exp(3.0))), math.sqrt(math.log(2.0)), math.sqrt(math.exp(-60.0))]
    torch.testing.assert_close(weights, torch.tensor([want]))


@pytest.mark.parametrize("score", ["softmax", "softmax_chosen", "sigmoid", "sqrt_softplus"])
@pytest.mark.parametrize("groups", [1, 2])
def test_equal_logits_rank_by_id_and_nan_ranks_last(score, groups):
    nan = math.nan
    logits = torch.tensor([[1.0] * 6, [nan] * 6, [nan, 2, nan, 5, 5, nan], [-math.inf] * 5 + [0.0], [nan, 1, nan, nan, nan, 0]])
    ids, weights = routed(logits, top_k=3, score=score, groups=groups, top_groups=groups)
    assert ids.tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 1], [5, 0, 1], [1, 5, 0]]
    assert bool(weights[0].isfinite().all())


def test_a_group_with_nan_ranks_after_the_others():
    logits = torch.tensor([[math.nan, math.nan, 0.0, -1.0, -5.0, 3.0]])
    for how in ("max", "top2"):
        ids, _ = routed(logits, top_k=2, score="sigmoid", groups=3, top_groups=1, group_score=how)
        assert ids.tolist() == [[5, 4]]


def test_a_nan_reaches_all_keys_only_if_they_are_softmax_scores():
    logits = torch.tensor([[0.0, math.nan, 3.0, 1.0, 5.0, 2.0]])
    assert routed(logits, top_k=2, score="softmax")[0].tolist() == [[4, 2]]
    assert routed(logits, top_k=2, score="softmax", correction=torch.zeros(6))[0].tolist() == [[0, 1]]
    assert routed(logits, top_k=2, score="sigmoid", correction=torch.zeros(6))[0].tolist() == [[4, 2]]
    for score, chosen in (("softmax", [0, 1]), ("sigmoid", [4, 5])):
        ids, _ = routed(logits, top_k=2, score=score, groups=2, top_groups=1, group_score="top2")
        assert ids.tolist() == [chosen]


def test_groups_are_ranked_by_their_largest_score_or_by_the_two_largest():
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.55]])
    logits = (scores / (1 - scores)).log()
    assert routed(logits, top_k=1, score="sigmoid", groups=2)[0].tolist() == [[0]]
    assert routed(logits, top_k=1, score="sigmoid", groups=2, group_score="top2")[0].tolist() == [[2]]


def test_given_ids_get_the_weights_of_the_scores_and_unknown_ids_get_zero(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "off")
    forget_selections()
    logits = torch.randn(3, 5)
    _, weights = routed(logits, top_k=2, given_ids=i32([[4, 0], [9, 1], [-1, 5]]))
    scores = logits.softmax(1)
    want = torch.stack([scores[0, [4, 0]], torch.stack([scores[1, 0] * 0, scores[1, 1]]), torch.zeros(2)])
    torch.testing.assert_close(weights, want)
    forget_selections()


def test_loads_and_replicas_count_valid_rows():
    d = RouteDescriptor(total_num_rows=4, experts=3, top_k=2, dtype="f32", loads=True, most_replicas=2, num_valid=True)
    logits = torch.tensor([[3.0, 2, 1], [1, 3, 2], [3, 2, 1], [1, 2, 3]])
    made = {name: i32([[-7, -7]] * 4) for name in ("ids", "physical_ids")}
    args = ran(
        d,
        RouteArgs(
            logits=logits, weights=torch.zeros(4, 2), loads=i32([9, 9, 9]), replicas=i32([[10, 11], [20, 0], [30, 31]]),
            num_replicas=i32([2, 1, 2]), num_valid=i32([3]), **made,
        ),
    )  # fmt: skip
    assert args.ids.tolist() == [[0, 1], [1, 2], [0, 1], [-7, -7]]
    assert args.loads.tolist() == [2, 3, 1]
    assert args.physical_ids.tolist() == [[10, 20], [20, 31], [10, 20], [-7, -7]]


@pytest.mark.parametrize(
    "fault", [lambda ids: ids[0].copy_(ids[0].flip(0)), lambda ids: ids[1].fill_(3), lambda ids: ids[2, 0].fill_(40)]
)
@pytest.mark.parametrize("correction", [False, True])
def test_the_error_check_detects_a_wrong_choice(fault, correction):
    more = {"score": "sigmoid", "correction": True, "groups": 4, "top_groups": 2, "group_score": "top2"} if correction else {}
    d = RouteDescriptor(total_num_rows=5, experts=40, top_k=3, dtype="f32", **more)
    args, plan = inputs.make_args(d, 3), Plan.select(d)
    args.logits.normal_()
    plan.run(args)
    assert numerics.check(d, args, plan.sku).worst <= 1
    fault(args.ids)
    assert numerics.check(d, args, plan.sku).worst > 1


@pytest.mark.parametrize("fields", [{}, {"score": "sigmoid", "correction": True}], ids=["", "correction"])
def test_the_error_check_detects_a_wrong_choice_with_matching_weights(fields):
    """The choices are in another order, with matching weights."""
    d = RouteDescriptor(total_num_rows=5, experts=40, top_k=3, dtype="f32", **fields)
    args, plan = inputs.make_args(d, 3), Plan.select(d)
    args.logits.normal_()
    plan.run(args)
    assert numerics.check(d, args, plan.sku).worst <= 1
    for tensor in (args.ids, args.weights):
        tensor[0] = tensor[0].flip(0)
    assert numerics.check(d, args, plan.sku).worst > 1


def sorted_by(d, ids):
    args = inputs.make_args(d, 1)
    return ran(
        d,
        MoeSortArgs(
            **{name: getattr(args, name) for name in ("indptr", "order", "x_rows", "places")}, ids=torch.as_tensor(ids).int()
        ),
    )


def test_a_sort_is_stable_and_omits_experts_of_other_ranks():
    d = MoeSortDescriptor(total_num_rows=4, top_k=2, experts=6, first_expert=2, num_local=2)
    args = sorted_by(d, [[3, 2], [0, 3], [2, -1], [3, 99]])
    assert args.indptr.tolist() == [0, 2, 5]
    assert args.order.tolist() == [1, 4, 0, 3, 6, 0, 0, 0]
    assert args.x_rows.tolist() == [0, 2, 0, 1, 3, 0, 0, 0]
    assert args.places.tolist() == [[2, 0], [-1, 3], [1, -1], [4, -1]]


@pytest.mark.parametrize("rows", [0, 3])
def test_groups_are_empty_if_no_row_chooses_a_local_expert(rows):
    d = MoeSortDescriptor(total_num_rows=rows, top_k=2, experts=4, first_expert=3)
    args = sorted_by(d, torch.zeros(rows, 2, dtype=torch.int32))
    assert args.indptr.tolist() == [0, 0]
    assert args.places.flatten().tolist() == [-1] * 2 * rows


def test_an_unwritten_row_is_skipped_and_not_multiplied_by_zero():
    d = MoeCombineDescriptor(total_num_rows=3, top_k=2, hidden=4, dtype="f32", add=True)
    y = torch.full((6, 4), math.nan)
    y[1], y[4] = 2.0, 5.0
    weights = torch.tensor([[0.5, 0.0], [0.0, 3.0], [0.0, 0.0]])
    args = MoeCombineArgs(
        y=y, places=i32([[1, -1], [-1, 4], [-1, -1]]), weights=weights, add=torch.ones(3, 4), out=torch.full((3, 4), math.nan)
    )
    assert ran(d, args).out[:, 0].tolist() == [2.0, 16.0, 1.0]


def test_places_out_of_range_are_not_read(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "off")
    forget_selections()
    d = MoeCombineDescriptor(total_num_rows=1, top_k=3, hidden=2, dtype="f32", weighted=False)
    y = torch.ones(3, 2)
    args = MoeCombineArgs(y=y, places=i32([[3, 2, -9]]), out=torch.full((1, 2), math.nan))
    assert ran(d, args).out.tolist() == [[1.0, 1.0]]
    forget_selections()


@pytest.mark.parametrize("level", ["indices", "full"])
@pytest.mark.parametrize(
    ("d", "name", "value"),
    [
        (MoeCombineDescriptor(total_num_rows=3, top_k=2, hidden=4, dtype="f32"), "places", 6),
        (MoeGatherDescriptor(total_num_rows=3, top_k=2, hidden=4, dtype="f32"), "order", 6),
        (RouteDescriptor(total_num_rows=3, experts=5, top_k=2, dtype="f32", ids_given=True), "given_ids", 5),
    ],
)
def test_indices_out_of_range_are_refused(monkeypatch, level, d, name, value):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    forget_selections()
    args = inputs.make_args(d, 1)
    getattr(args, name).view(-1)[0] = value
    with pytest.raises(IndexDataError) as caught:
        ran(d, args)
    assert caught.value.issues[0].argument.startswith(name)
    forget_selections()


def test_nan_logits_are_refused_at_level_full_and_otherwise_give_nan_weights(monkeypatch):
    logits = torch.randn(3, 5)
    logits[1, 2] = math.nan
    ids, weights = routed(logits, top_k=2)
    assert ids[1].tolist() != [2, 2]
    assert weights.isnan().any(1).tolist() == [False, True, False]
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    forget_selections()
    with pytest.raises(ArgumentError, match="OPF-V003"):
        routed(logits, top_k=2)
    forget_selections()


def test_a_layer_of_separate_plans_equals_the_loop_over_experts():
    rows, experts, k, hidden, width = 13, 6, 2, 16, 8
    x, logits = torch.randn(rows, hidden).double(), torch.randn(rows, experts)
    up, down = torch.randn(experts, 2 * width, hidden).double(), torch.randn(experts, hidden, width).double()
    ids, weights = routed(logits, top_k=k, renormalise=True)
    by = sorted_by(MoeSortDescriptor(total_num_rows=rows, top_k=k, experts=experts), ids.tolist())
    many = {"groups": experts, "total_num_rows": rows * k, "dtype": "f64"}
    first = GroupedMatmulDescriptor(**many, n=width, k=hidden, gather=True, num_x_rows=rows, gated=True, activation="silu")
    h = torch.full((rows * k, width), math.nan).double()
    GroupedMatmulPlan.select(first).run(GroupedMatmulArgs(x=x, weight=up, out=h, indptr=by.indptr, x_rows=by.x_rows))
    y = torch.full((rows * k, hidden), math.nan).double()
    second = GroupedMatmulDescriptor(**many, n=hidden, k=width)
    GroupedMatmulPlan.select(second).run(GroupedMatmulArgs(x=h, weight=down, out=y, indptr=by.indptr))
    d = MoeCombineDescriptor(total_num_rows=rows, top_k=k, hidden=hidden, dtype="f32")
    out = ran(d, MoeCombineArgs(y=y.float(), places=by.places, weights=weights, out=torch.empty(rows, hidden))).out
    want = torch.zeros(rows, hidden).double()
    for r in range(rows):
        for slot in range(k):
            gate_up = up[ids[r, slot]] @ x[r]
            one = down[ids[r, slot]] @ (torch.nn.functional.silu(gate_up[0::2]) * gate_up[1::2])
            want[r] += weights[r, slot] * one
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "fields", "path"),
    [
        (RouteDescriptor, {"groups": 3}, "groups"),
        (RouteDescriptor, {"top_groups": 2}, "top_groups"),
        (RouteDescriptor, {"groups": 4, "top_k": 3}, "top_k"),
        (RouteDescriptor, {"top_k": 17, "experts": 64}, "top_k"),
        (RouteDescriptor, {"experts": 1025}, "experts"),
        (RouteDescriptor, {"score": "softmax_chosen", "correction": True}, "correction"),
        (RouteDescriptor, {"ids_given": True, "correction": True}, "ids_given"),
        (MoeSortDescriptor, {"first_expert": 8}, "first_expert"),
        (MoeSortDescriptor, {"first_expert": 4, "num_local": 5}, "num_local"),
        (MoeSortDescriptor, {"total_num_rows": 2**30, "top_k": 2}, "total_num_rows"),
    ],
)
def test_contradictory_fields_are_refused(kind, fields, path):
    given = {"total_num_rows": 3, "experts": 8, "top_k": 2} | ({"dtype": "f32"} if kind is RouteDescriptor else {})
    with pytest.raises(DescriptorError) as caught:
        kind(**(given | fields))
    assert caught.value.issues[0].argument == path


def test_the_error_check_detects_a_wrong_weight_and_a_wrong_sum():
    layer = next(d for d in EXAMPLES if d.op == "fused_moe" and d.halves == "interleaved" and d.dtype == "f16")
    for d, name in ((EXAMPLES[0], "weights"), (layer, "out")):
        args, plan = inputs.make_args(d, 3), Plan.select(d)
        plan.run(args)
        assert numerics.check(d, args, plan.sku).worst <= 1
        spoiled = getattr(args, name).clone()
        spoiled[1, 1] *= 1.02
        assert numerics.check(d, replace(args, **{name: spoiled}), plan.sku).worst > 1
