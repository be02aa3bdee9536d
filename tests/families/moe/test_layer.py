"""The whole layer against loops over rows and slots in f64, and against the layers of transformers."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import gelu, silu, softplus

from opfacade import Plan, Target
from opfacade.core.descriptor import operands_of
from opfacade.errors import DescriptorError, IndexDataError
from opfacade.plan import forget_selections
from opfacade.plans._steps import Last, _lowest, places
from opfacade.plans.moe import EXAMPLES, FusedMoeArgs, FusedMoeDescriptor, Router
from opfacade.serving.workspace import Workspace
from opfacade.testing import numerics

LAYERS = [d for d in EXAMPLES if d.op == "fused_moe"]
ACTIVATIONS = {"silu": silu, "relu2": lambda x: x.clamp(min=0) ** 2, "gelu": gelu, "identity": lambda x: x}
ACTIVATIONS["gelu_tanh"] = lambda x: gelu(x, approximate="tanh")


def drawn(d, seed=0):
    """Tensors of a call, of ordinary size."""
    torch.manual_seed(seed)
    made = {}
    for name, spec in operands_of(d).items():
        shape = [dim.size for dim in spec.shape]
        values = torch.randn(shape) * (1 if name in ("x", "logits", "correction") else 0.5)
        made[name] = values.to(
            {"f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "f8_e4m3": torch.float8_e4m3fn}.get(
                spec.dtype, torch.float32
            )
        )
        if name.endswith("_scale"):
            made[name] = made[name].abs() + 0.25
    if d.router is None:
        made["ids"] = torch.rand(d.total_num_rows, d.experts).argsort(1)[:, : d.top_k].int()
        made["weights"] = made["weights"].abs()
    made["out"].fill_(math.nan)
    return FusedMoeArgs(**made)


def ran(d, args):
    Plan.select(d).run(args)
    return args


def one_expert(d, x, up, down, up_bias=None, down_bias=None, eight=False):
    """A row through an expert, in f64. eight: the results of the activation are quantised."""
    up, down = (w.double() if d.weight_layout == "nk" else w.double().T for w in (up, down))
    both = up @ x + (0 if up_bias is None else up_bias.double())
    half = len(both) // 2
    if not d.gated:
        gate, ups = both, None
    elif d.halves == "interleaved":
        gate, ups = both[0::2], both[1::2]
    else:
        gate, ups = (both[:half], both[half:]) if d.halves == "gate_up" else (both[half:], both[:half])
    if d.limit is not None:
        gate, ups = gate.clamp(max=d.limit), ups if ups is None else ups.clamp(-d.limit, d.limit)
    h = ACTIVATIONS[d.activation](gate) if d.alpha is None else gate / (1 + (-d.alpha * gate).exp())
    h = h if ups is None else h * (ups + d.beta)
    h = in_8_bits(d, h) if eight else h
    return down @ h + (0 if down_bias is None else down_bias.double())


def in_8_bits(d, x):
    """The numbers that a row represents once it is quantised."""
    parts = x.float().reshape(-1, 128 if d.scaling == "block" else len(x))
    scale = parts.abs().amax(1, keepdim=True).clamp(min=1e-10) / 448
    return ((parts / scale).to(torch.float8_e4m3fn).double() * scale.double()).flatten()


def weight_of(d, args, name, expert):
    """A weight with its scales, in f64."""
    weight = getattr(args, name)[expert].double()
    if d.scaling is None:
        return weight
    scale = getattr(args, f"{name}_scale")[expert].double()
    rows, columns = (1, weight.shape[1]) if d.scaling == "token" else (128, 128)
    scale = scale[:, None] if d.scaling == "token" else scale
    return weight * torch.kron(scale, torch.ones(rows, columns).double())[: weight.shape[0], : weight.shape[1]]


def by_hand(d, args):
    """out in f64, of the ids and weights that stand in args."""
    out = torch.zeros(d.total_num_rows, d.hidden).double()
    ids, weights = (args.ids, args.weights) if d.router is None else (args.chosen_ids, args.chosen_weights)
    for r in range(d.total_num_rows):
        x = args.x[r].double()
        for slot in range(d.top_k):
            e, w = int(ids[r, slot]) - d.first_expert, weights[r, slot].double()
            if not 0 <= e < d.local:
                continue
            biases = (args.up_bias[e], args.down_bias[e]) if d.bias else ()
            given = x * w if d.weights_at == "input" else x
            given = given if d.scaling is None else in_8_bits(d, given)
            one = one_expert(
                d, given, weight_of(d, args, "up", e), weight_of(d, args, "down", e), *biases, eight=d.scaling is not None
            )
            out[r] += one if d.weights_at == "input" else w * one
        if d.shared_width:
            out[r] += one_expert(d, x, args.shared_up, args.shared_down)
        if d.add:
            out[r] += args.add[r].double()
    return out


SIZES = {"total_num_rows": 7, "experts": 5, "top_k": 2, "hidden": 13, "width": 9, "dtype": "f32"}


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
def test_it_is_the_loop_over_rows_and_slots(fields):
    d = FusedMoeDescriptor(**(SIZES | fields))
    args = ran(d, drawn(d))
    torch.testing.assert_close(args.out.double(), by_hand(d, args), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("d", LAYERS, ids=lambda d: d.digest()[:6])
def test_it_keeps_its_bound_and_a_wrong_element_breaks_it(d):
    args, plan = drawn(d), Plan.select(d)
    before = numerics.snapshot(d, args)
    plan.run(args)
    assert numerics.check(d, args, plan.sku, before=before).worst <= 1
    assert (args.out.double() - by_hand(d, args)).abs().max() <= 0.05 * by_hand(d, args).abs().max()
    spoiled = args.out.clone()
    spoiled[1, 1] += 4 if d.scaling is None else args.out.abs().max()  # numbers of 8 bits have wide bounds
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
def test_experts_of_8_bits_are_the_loop_over_what_their_numbers_stand_for(fields, scaling):
    sizes = {"hidden": 256, "width": 128} if scaling == "block" else {}
    d = FusedMoeDescriptor(**(SIZES | sizes | fields), scaling=scaling)
    args = ran(d, drawn(d))
    want = by_hand(d, args)
    assert (args.out.double() - want).abs().max() <= 0.01 * want.abs().max()


@pytest.mark.parametrize("field", ["hidden", "width"])
def test_blocks_are_whole(field):
    with pytest.raises(DescriptorError, match="a multiple of 128 with scaling block") as caught:
        FusedMoeDescriptor(**(SIZES | {"hidden": 256, "width": 128} | {field: 200}), scaling="block")
    assert caught.value.issues[0].argument == field


def test_the_router_decides_as_the_op_does():
    d = FusedMoeDescriptor(**SIZES, router=Router(dtype="f32", renormalise=True, scale=1.5))
    args = ran(d, drawn(d))
    scores, ids = args.logits.softmax(1).topk(2, dim=1)
    assert torch.equal(args.chosen_ids.long(), ids)
    torch.testing.assert_close(args.chosen_weights, 1.5 * scores / scores.sum(1, keepdim=True))
    torch.testing.assert_close(args.out.double(), by_hand(d, args), rtol=2e-6, atol=2e-6)


def test_ranks_of_expert_parallelism_add_up_to_the_layer():
    d = FusedMoeDescriptor(**(SIZES | {"experts": 6}))
    args = drawn(d)
    total = torch.zeros(d.total_num_rows, d.hidden)
    for first in (0, 2, 4):
        part = FusedMoeDescriptor(**(SIZES | {"experts": 6}), first_expert=first, num_local=2)
        own = {name: getattr(args, name)[first : first + 2] for name in ("up", "down")}
        total += ran(part, replace(args, **own, out=torch.full_like(args.out, math.nan))).out
    torch.testing.assert_close(total, ran(d, args).out, rtol=2e-6, atol=2e-6)


def test_what_stood_in_the_workspace_has_no_effect_and_ids_of_no_expert_have_no_part():
    d = FusedMoeDescriptor(**SIZES, weights_at="input", shared_width=3)
    args, plan = drawn(d), Plan.select(d)
    args.ids[2] = -1
    args.ids[3, 1] = -1
    results = []
    for byte in (0, 0xFF):
        room = torch.full((plan.workspace_size + 256,), byte, dtype=torch.uint8)
        begin = -room.data_ptr() % 256
        plan.run(args, room[begin : begin + plan.workspace_size])
        results.append(args.out.clone())
    assert torch.equal(*results)
    torch.testing.assert_close(results[0].double(), by_hand(d, args), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("d", LAYERS, ids=lambda d: d.digest()[:6])
def test_tensors_that_are_needed_together_do_not_overlap(d):
    steps = d.steps()
    found, total = places(operands_of(d), steps)
    spans = {}
    for name, place in found.items():
        count = math.prod(dim.size for dim in place.spec.shape)
        spans[name] = (place.offset, place.offset + count * {"i32": 4, "f32": 4, "f8_e4m3": 1}.get(place.spec.dtype, 2))
        assert place.offset % 256 == 0
        assert spans[name][1] <= total <= Plan.select(d).workspace_size

    def named(step):
        return {one.name if isinstance(one, Last) else one for one in step.tensors.values()} & set(found)

    uses = {name: [i for i, step in enumerate(steps) if name in named(step)] for name in found}
    for a in found:
        for b in found:
            together = max(uses[a][0], uses[b][0]) <= min(uses[a][-1], uses[b][-1])
            assert a == b or not together or spans[a][1] <= spans[b][0] or spans[b][1] <= spans[a][0], (a, b)


@pytest.mark.parametrize(("taken", "want"), [([(0, 1000), (256, 512)], 1000), ([(100, 200)], 0), ([(0, 90), (200, 300)], 90)])
def test_a_tensor_lies_beside_all_that_are_needed_together_with_it(taken, want):
    """A short one may lie within the span of a long one, when they are not needed at the same time."""
    assert _lowest(taken, 100) == want


def test_the_workspace_of_a_layer_is_what_its_steps_need_at_once():
    """DeepSeek-V3 at 8192 rows: gates and ups with what follows from them; results lie where gates and ups were."""
    d = FusedMoeDescriptor(total_num_rows=8192, experts=256, top_k=8, hidden=7168, width=2048, dtype="bf16")
    choices = 8192 * 8
    small = 4 * (257 + choices)
    assert 0 <= Plan.select(d, target=Target.cpu()).workspace_size - 2 * choices * (7168 + 2048) - small <= 4 * choices + 1024


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
def test_fields_that_have_no_meaning_are_refused(fields, path):
    with pytest.raises(DescriptorError) as caught:
        FusedMoeDescriptor(**(SIZES | fields))
    assert caught.value.issues[0].argument == path


@pytest.mark.parametrize("level", ["indices", "full"])
@pytest.mark.parametrize("value", [5, -2, 2**31 - 1])
def test_an_id_out_of_range_is_refused_where_ids_are_looked_at_and_left_out_elsewhere(monkeypatch, level, value):
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


class Config:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def _config(name, **fields):
    config = pytest.importorskip("transformers").AutoConfig.for_model(name, **fields)
    config._experts_implementation = "eager"
    return config


def module_of(name, cls, config):
    """A module of transformers with random weights in f64."""
    found = getattr(__import__(f"transformers.models.{name}.modeling_{name}", fromlist=[cls]), cls)(config).double()
    torch.manual_seed(3)
    for one in [*found.parameters(), *found.buffers()]:
        one.data.normal_(std=0.4)
    return found.requires_grad_(False)


def chosen(d):
    torch.manual_seed(5)
    ids = torch.rand(d.total_num_rows, d.experts).argsort(1)[:, : d.top_k]
    return torch.randn(d.total_num_rows, d.hidden), ids, torch.rand(d.total_num_rows, d.top_k)


EXPERTS = {
    "mixtral": ("MixtralExperts", {"num_local_experts": 5, "hidden_size": 12, "intermediate_size": 8}, {}),
    "qwen3_moe": ("Qwen3MoeExperts", {"num_experts": 5, "hidden_size": 12, "moe_intermediate_size": 8}, {}),
    "gpt_oss": (
        "GptOssExperts", {"num_local_experts": 5, "hidden_size": 12, "intermediate_size": 8},
        {"halves": "interleaved", "limit": 7.0, "alpha": 1.702, "beta": 1.0, "bias": True, "weight_layout": "kn"},
    ),
    "nemotron_h": (
        "NemotronHExperts", {"n_routed_experts": 5, "hidden_size": 12, "moe_intermediate_size": 8, "mlp_hidden_act": "relu2"},
        {"activation": "relu2", "gated": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_of_transformers_make_the_same(name):
    cls, sizes, fields = EXPERTS[name]
    module = module_of(name, cls, _config(name, **sizes))
    d = FusedMoeDescriptor(total_num_rows=9, experts=5, top_k=3, hidden=12, width=8, dtype="f32", **fields)
    x, ids, weights = chosen(d)
    want = module(x.double(), ids, weights.double())
    names = {
        "gate_up_proj": "up",
        "up_proj": "up",
        "down_proj": "down",
        "gate_up_proj_bias": "up_bias",
        "down_proj_bias": "down_bias",
    }
    given = {names[key]: value.float() for key, value in module.named_parameters()}
    args = FusedMoeArgs(x=x, ids=ids.int(), weights=weights, out=torch.full_like(x, math.nan), **given)
    torch.testing.assert_close(ran(d, args).out.double(), want, rtol=1e-5, atol=1e-5)


def test_a_layer_of_llama_4_has_its_weights_on_the_input():
    sizes = {"num_local_experts": 4, "hidden_size": 12, "intermediate_size": 8, "num_experts_per_tok": 1}
    module = module_of("llama4", "Llama4TextMoe", _config("llama4_text", **sizes))
    fields = {"weight_layout": "kn", "weights_at": "input", "shared_width": 8, "router": Router(dtype="f32", score="sigmoid")}
    d = FusedMoeDescriptor(total_num_rows=9, experts=4, top_k=1, hidden=12, width=8, dtype="f32", **fields)
    x = torch.randn(9, 12)
    want, logits = module(x.double())
    shared = module.shared_expert
    args = FusedMoeArgs(
        x=x, logits=logits.float(), up=module.experts.gate_up_proj.float(), down=module.experts.down_proj.float(),
        shared_up=torch.cat([shared.gate_proj.weight, shared.up_proj.weight]).T.float().contiguous(),
        shared_down=shared.down_proj.weight.T.float().contiguous(), chosen_ids=torch.empty(9, 1, dtype=torch.int32),
        chosen_weights=torch.empty(9, 1), out=torch.full_like(x, math.nan),
    )  # fmt: skip
    torch.testing.assert_close(ran(d, args).out.double(), want, rtol=1e-5, atol=1e-5)


def test_a_layer_of_deepseek_has_a_shared_expert():
    sizes = {
        "num_local_experts": 8,
        "n_routed_experts": 8,
        "hidden_size": 12,
        "moe_intermediate_size": 8,
        "n_shared_experts": 2,
    }
    more = {"num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    module = module_of("deepseek_v3", "DeepseekV3MoE", _config("deepseek_v3", **sizes, **more))
    router = Router(
        dtype="f32", score="sigmoid", correction=True, groups=4, top_groups=2, group_score="top2", renormalise=True, scale=2.5
    )
    d = FusedMoeDescriptor(
        total_num_rows=9, experts=8, top_k=3, hidden=12, width=8, dtype="f32", shared_width=16, router=router
    )
    x, gate, shared = torch.randn(9, 12), module.gate, module.shared_experts
    args = FusedMoeArgs(
        x=x, logits=(x.double() @ gate.weight.double().T).float(), correction=gate.e_score_correction_bias.float(),
        up=module.experts.gate_up_proj.float(), down=module.experts.down_proj.float(),
        shared_up=torch.cat([shared.gate_proj.weight, shared.up_proj.weight]).float(),
        shared_down=shared.down_proj.weight.float(), chosen_ids=torch.empty(9, 3, dtype=torch.int32),
        chosen_weights=torch.empty(9, 3), out=torch.full_like(x, math.nan),
    )  # fmt: skip
    want = module(x.double()[None])[0]
    torch.testing.assert_close(ran(d, args).out.double(), want, rtol=1e-5, atol=1e-5)


def test_softplus_is_what_routers_take():
    d = FusedMoeDescriptor(**SIZES, router=Router(dtype="f32", score="sqrt_softplus"))
    args = ran(d, drawn(d))
    torch.testing.assert_close(args.chosen_weights, softplus(args.logits).sqrt().topk(2, dim=1).values)


def test_a_shared_workspace_serves_a_layer_on_a_cpu():
    """Its size lets an allocation begin anywhere."""
    d = FusedMoeDescriptor(**SIZES)
    for _ in range(5):
        args, plan, workspace = drawn(d), Plan.select(d), Workspace("cpu")
        plan.run(args, workspace.of(plan))
        torch.testing.assert_close(args.out.double(), by_hand(d, args), rtol=2e-6, atol=2e-6)
