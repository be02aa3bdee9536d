"""experts_implementation="opfacade": logits and greedy tokens of the experts of transformers, and refusals by name."""

import pytest
import torch

from opfacade import errors
from tests.integrations.tiny_models import MODELS, generate, model_of, padded, prompts

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("one_thread", "registered")]
TOLERANCE = 2e-5  # of the largest logit in f32
# Family: layers with experts
LAYERS = {"qwen3_moe": 2, "mixtral": 2, "gpt_oss": 2, "deepseek_v3": 1}


def both(family, **fields):
    """A model with transformers' own experts, and the same weights with our experts."""
    own = model_of(family, MODELS[family][2], experts_implementation="eager", **fields)
    return own, model_of(family, MODELS[family][2], experts_implementation="opfacade", **fields)


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def layers(counted):
    return sum(v["runs"] for sku, v in counted.snapshot().items() if "/fused_moe/" in sku)


@pytest.mark.parametrize("family", LAYERS)
def test_a_model_has_the_logits_and_greedy_tokens_of_its_own_experts(family, fresh_telemetry):
    own, model = both(family)
    inputs = padded(prompts(5, 23, 17))
    want = logits(own, inputs)
    assert layers(fresh_telemetry) == 0
    got = logits(model, inputs)
    assert layers(fresh_telemetry) == LAYERS[family]
    assert (got - want).abs().max() <= TOLERANCE * want.abs().max()
    assert generate(model, inputs, 4) == generate(own, inputs, 4)


def module_of(family, dtype=torch.float32, implementation="opfacade", **fields):
    return next(
        module
        for module in model_of(family, "eager", dtype, experts_implementation=implementation, **fields).modules()
        if type(module).__name__.endswith("Experts")
    ).requires_grad_(False)


def routed(module, rows=7, choices=2):
    """A call of experts: rows, distinct ids, and weights in f32."""
    torch.manual_seed(4)
    ids = torch.rand(rows, module.num_experts).argsort(1)[:, :choices]
    dtype, hidden = module.down_proj.dtype, 64
    return torch.randn(rows, hidden).to(dtype), ids, torch.rand(rows, choices)


def exact(module, x, ids, weights):
    """Rows through gated experts in f64, and a bound on the effect of roundings to u between the steps, per element."""
    u = 2.0**-9
    want, room = torch.zeros(x.shape).double(), torch.zeros(x.shape).double()
    for r in range(len(x)):
        for expert, weight in zip(ids[r].tolist(), weights[r].double(), strict=True):
            gate, up = (module.gate_up_proj[expert].double() @ x[r].double()).chunk(2)
            h = torch.nn.functional.silu(gate) * up
            # The slope of silu is below 1.1; gate and up were rounded, and then h.
            moved = u * (1.1 * gate.abs() * up.abs() + 2 * h.abs())
            down = module.down_proj[expert].double()
            want[r] += weight * (down @ h)
            room[r] += weight * (down.abs() @ moved + u * (down @ h).abs())
    return want, 1.02 * (room + u * want.abs()) + 1e-6


def test_experts_in_bf16_round_between_steps_alone():
    module = module_of("mixtral", torch.bfloat16)
    x, ids, weights = routed(module, rows=9)
    got, (want, room) = module(x, ids, weights), exact(module, x, ids, weights)
    assert got.dtype == torch.bfloat16
    assert bool(((got.double() - want).abs() <= room).all())
    lost = exact(module, x, ids[:, :1], weights[:, :1])[0]
    assert bool(((got.double() - lost).abs() > room).any())


def test_ids_of_other_ranks_have_no_part():
    module = module_of("mixtral")
    x, ids, weights = routed(module)
    want = module(x, ids[:, :1], weights[:, :1])
    ids[:, 1] = module.num_experts
    torch.testing.assert_close(module(x, ids, weights), want)
    ids[:, 1] = module.num_experts + 3
    torch.testing.assert_close(module(x, ids, weights), want)


def test_a_call_without_rows_gives_none():
    module = module_of("qwen3_moe")
    assert module(*routed(module, rows=0)).shape == (0, 64)


def test_experts_without_gates_run_the_square_of_relu():
    """Nemotron-H has them."""
    from transformers.models.nemotron_h import modeling_nemotron_h as nemotron

    config = nemotron.NemotronHConfig(n_routed_experts=4, hidden_size=64, moe_intermediate_size=24)
    module = nemotron.NemotronHExperts(config).requires_grad_(False)
    for weight in module.parameters():
        weight.normal_(std=0.2)
    call = routed(module)
    module.config._experts_implementation = "eager"
    want = module(*call)
    module.config._experts_implementation = "opfacade"
    torch.testing.assert_close(module(*call), want)


def test_under_autocast_rows_take_the_dtype_of_the_weights():
    module = module_of("mixtral", torch.bfloat16)
    x, ids, weights = routed(module)
    with torch.autocast("cpu", torch.bfloat16):
        got = module(x.float(), ids, weights)
    assert got.dtype == torch.float32
    assert torch.equal(got, module(x, ids, weights).float())


def _norm_behind(module, call):
    module.has_post_expert_norm = True
    return module, call


def _other_gate(module, call):
    kind = type("OwnExperts", (type(module),), {"_apply_gate": lambda self, both: both.chunk(2, -1)[0]})
    module.__class__ = kind
    return module, call


def _other_function(module, call):
    module.act_fn = torch.nn.Tanh()
    return module, call


def _other_dtype(module, call):
    return module, (call[0].bfloat16(), *call[1:])


def _wide(module, call):
    return module.double(), (call[0].double(), *call[1:])


def _gradients(module, call):
    return module.requires_grad_(), call


REFUSED = {
    "a norm behind": (_norm_behind, errors.UnsupportedError, "OPF-I001", "has_post_expert_norm expected False"),
    "another gate": (_other_gate, errors.UnsupportedError, "OPF-I001", "_apply_gate of OwnExperts"),
    "another function": (_other_function, errors.UnsupportedError, "OPF-I001", "act_fn Tanh"),
    "another dtype": (_other_dtype, errors.DTypeError, "OPF-I003", "up expected torch.bfloat16"),
    "f64": (_wide, errors.DTypeError, "OPF-I003", "hidden_states expected a plain tensor"),
    "gradients": (_gradients, errors.GradNotSupportedError, "OPF-I007", "grouped_mm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_plan_takes_is_refused_by_name(case):
    change, kind, code, words = REFUSED[case]
    module, call = change(*(lambda module: (module, routed(module)))(module_of("mixtral")))
    with pytest.raises(kind, match=words) as raised:
        module(*call)
    assert raised.value.code == code


def test_more_choices_than_a_layer_has_experts_are_refused():
    module = module_of("mixtral")
    x, ids, weights = routed(module)
    with pytest.raises(errors.DescriptorError, match="top_k"):
        module(x, ids.repeat(1, 9), weights.repeat(1, 9))


def test_a_compiled_model_is_one_graph_for_all_sizes(fresh_telemetry):
    model = both("qwen3_moe", num_hidden_layers=1)[1]
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    inputs, longer = padded(prompts(11, 20)), padded(prompts(13, 27, 4))
    torch.testing.assert_close(logits(compiled, inputs), logits(model, inputs))
    fresh_telemetry.reset()
    with torch.compiler.set_stance("fail_on_recompile"):
        found = logits(compiled, longer)
    assert layers(fresh_telemetry) == 1
    torch.testing.assert_close(found, logits(model, longer))


def test_the_op_has_the_shapes_and_effects_that_its_schema_says():
    module = module_of("gpt_oss")
    x, ids, weights = routed(module)
    tensors = (x, ids.int(), weights, module.gate_up_proj, module.gate_up_proj_bias, module.down_proj, module.down_proj_bias)
    op = torch.ops.opfacade_transformers.experts.default
    torch.library.opcheck(op, (*tensors, "pairs", 7.0, 1.702, True), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("family", LAYERS)
def test_weights_of_experts_that_load_in_place_count_and_so_do_later_ones(family):
    """A trainer pushes weights into the memory of experts that have already run."""
    own, model = both(family)
    inputs = padded(prompts(5, 23, 17))
    for seed in (3, 4):
        logits(model, inputs)
        torch.manual_seed(seed)
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), own.parameters(), strict=True):
                theirs.copy_(theirs + torch.randn_like(theirs) * 0.05)
                mine.data.copy_(theirs)
        want = logits(own, inputs)
        assert (logits(model, inputs) - want).abs().max() <= TOLERANCE * want.abs().max()
