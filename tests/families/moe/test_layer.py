"""The mixture-of-experts layer against loops over rows and slots in f64, and refusals."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import softplus

from opfacade import Plan
from opfacade.errors import DescriptorError, IndexDataError
from opfacade.plan import forget_selections
from opfacade.plans.moe import FusedMoeDescriptor, Router
from opfacade.testing import numerics
from tests.families.moe.layers import LAYERS, SIZES, by_hand, drawn, ran


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"halves": "up_gate", "activation": "gelu"},
        {"halves": "interleaved"},
        {"halves": "interleaved", "limit": 0.9, "alpha": 1.702, "beta": 1.0, "bias": True, "weight_layout": "kn"},
        {"halves": "up_gate", "beta": 1.0},
        {"limit": 0.7, "beta": 0.25, "alpha": 0.8},
        {"limit": 0.7, "beta": 1.0},
        {"limit": 0.7, "activation": "gelu_tanh", "beta": -1.0},
        {"activation": "identity", "beta": 0.5},
        {"alpha": 2.5},
        {"activation": "relu2", "gated": False, "bias": True},
        {"activation": "silu", "gated": False, "limit": 0.5, "alpha": 1.5},
        {"weights_at": "input", "shared_width": 6},
        {"weights_at": "input", "activation": "gelu_tanh", "add": True, "top_k": 1},
        {"shared_width": 11, "add": True, "halves": "interleaved", "weight_layout": "kn"},
        {"first_expert": 1, "num_local": 3},
        {"total_num_rows": 0, "add": True},
        {"experts": 1024, "top_k": 16, "width": 2, "hidden": 3},
    ],
    ids=lambda fields: "-".join(map(str, fields)) or "plain",
)
def test_the_layer_equals_the_loop_over_rows_and_slots(fields):
    d = FusedMoeDescriptor(**(SIZES | fields))
    args = ran(d, drawn(d))
    torch.testing.assert_close(args.out.double(), by_hand(d, args), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("d", LAYERS, ids=lambda d: d.digest()[:6])
def test_the_layer_keeps_its_bound_and_a_wrong_element_exceeds_it(d):
    args, plan = drawn(d), Plan.select(d)
    before = numerics.snapshot(d, args)
    plan.run(args)
    assert numerics.check(d, args, plan.sku, before=before).worst <= 1
    assert (args.out.double() - by_hand(d, args)).abs().max() <= 0.05 * by_hand(d, args).abs().max()
    spoiled = args.out.clone()
    size = args.out.abs().max()
    if d.weight_format is not None:
        spoiled[1, 1] += max(4, size / 4)  # the results of such layers are large
    else:
        spoiled[1, 1] += 4 if d.scaling is None else size  # 8-bit layers have wide bounds
    assert numerics.check(d, replace(args, out=spoiled), plan.sku, before=before).worst > 1


@pytest.mark.parametrize("scaling", ["token", "block"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"activation": "relu2", "gated": False, "bias": True},
        {"halves": "interleaved", "weights_at": "input"},
        {"limit": 0.7},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
def test_a_layer_of_8_bit_experts_equals_the_loop_over_the_represented_numbers(fields, scaling):
    sizes = {"hidden": 256, "width": 128} if scaling == "block" else {}
    d = FusedMoeDescriptor(**(SIZES | sizes | fields), scaling=scaling)
    args = ran(d, drawn(d))
    want = by_hand(d, args)
    assert (args.out.double() - want).abs().max() <= 0.01 * want.abs().max()


@pytest.mark.parametrize("field", ["hidden", "width"])
def test_sizes_that_are_not_multiples_of_a_block_are_refused(field):
    with pytest.raises(DescriptorError, match="a multiple of 128 with scaling block") as caught:
        FusedMoeDescriptor(**(SIZES | {"hidden": 256, "width": 128} | {field: 200}), scaling="block")
    assert caught.value.issues[0].argument == field


def test_the_router_in_the_layer_gives_the_choices_of_torch():
    d = FusedMoeDescriptor(**SIZES, router=Router(dtype="f32", renormalise=True, scale=1.5))
    args = ran(d, drawn(d))
    scores, ids = args.logits.softmax(1).topk(2, dim=1)
    assert torch.equal(args.chosen_ids.long(), ids)
    torch.testing.assert_close(args.chosen_weights, 1.5 * scores / scores.sum(1, keepdim=True))
    torch.testing.assert_close(args.out.double(), by_hand(d, args), rtol=2e-6, atol=2e-6)


def test_the_outputs_of_the_ranks_of_expert_parallelism_add_up_to_the_layer():
    d = FusedMoeDescriptor(**(SIZES | {"experts": 6}))
    args = drawn(d)
    total = torch.zeros(d.total_num_rows, d.hidden)
    for first in (0, 2, 4):
        part = FusedMoeDescriptor(**(SIZES | {"experts": 6}), first_expert=first, num_local=2)
        own = {name: getattr(args, name)[first : first + 2] for name in ("up", "down")}
        total += ran(part, replace(args, **own, out=torch.full_like(args.out, math.nan))).out
    torch.testing.assert_close(total, ran(d, args).out, rtol=2e-6, atol=2e-6)


def test_the_sqrt_softplus_score_equals_torch():
    d = FusedMoeDescriptor(**SIZES, router=Router(dtype="f32", score="sqrt_softplus"))
    args = ran(d, drawn(d))
    torch.testing.assert_close(args.chosen_weights, softplus(args.logits).sqrt().topk(2, dim=1).values)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"first_expert": 5}, "first_expert"),
        ({"first_expert": 3, "num_local": 3}, "num_local"),
        ({"activation": "gelu", "alpha": 1.0}, "alpha"),
        ({"gated": False, "halves": "interleaved"}, "halves"),
        ({"gated": False, "beta": 1.0}, "beta"),
        ({"bias_dtype": "f32"}, "bias_dtype"),
        ({"router": Router(dtype="f32", groups=2)}, "router.groups"),
        ({"router": Router(dtype="f32", score="softmax_chosen", correction=True)}, "router.correction"),
        ({"router": Router(dtype="f32"), "top_k": 6}, "top_k"),
        ({"total_num_rows": 2**30}, "total_num_rows"),
        ({"limit": 0.0}, "limit"),
        ({"experts": 1025}, "experts"),
    ],
)
def test_contradictory_fields_are_refused(fields, path):
    with pytest.raises(DescriptorError) as caught:
        FusedMoeDescriptor(**(SIZES | fields))
    assert caught.value.issues[0].argument == path


@pytest.mark.parametrize("level", ["indices", "full"])
@pytest.mark.parametrize("value", [5, -2, 2**31 - 1])
def test_an_id_out_of_range_is_refused_at_levels_that_check_indices_and_otherwise_ignored(monkeypatch, level, value):
    d = FusedMoeDescriptor(**SIZES)
    args = drawn(d)
    args.ids[3, 1] = value
    for name, refuses in (("off", False), (level, True)):
        monkeypatch.setenv("OPFACADE_VALIDATE", name)
        forget_selections()
        if refuses:
            with pytest.raises(IndexDataError) as caught:
                ran(d, args)
            assert caught.value.issues[0].argument.startswith("ids")
        else:
            torch.testing.assert_close(ran(d, args).out.double(), by_hand(d, args), rtol=2e-6, atol=2e-6)
    forget_selections()


@pytest.mark.parametrize("field", ["width", "shared_width"])
def test_two_gates_and_ups_of_an_element_fit_in_an_int32(field):
    fields = {"total_num_rows": 3, "experts": 3, "top_k": 2, "hidden": 16, "width": 8, "dtype": "f32"}
    assert FusedMoeDescriptor(**fields | {field: 2**30 - 1}).steps()
    assert FusedMoeDescriptor(**fields | {field: 2**31 - 1, "gated": False}).steps()
    with pytest.raises(DescriptorError, match=f"{field} expected at most 1073741823 with gates"):
        FusedMoeDescriptor(**fields | {field: 2**30})
