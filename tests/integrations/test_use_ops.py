"""use_ops: a model with norms, activations and rotations as plans gives the same logits and tokens as without them."""

import copy
from unittest import mock

import pytest
import torch

from opfacade import errors
from tests.integrations.tiny_models import FAMILIES, generate, model_of, padded, prompts

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("one_thread")]

# Norms, activations and rotations of two layers.
COUNTS = {"llama": (5, 2, 2), "qwen3": (9, 2, 2), "gemma2": (9, 2, 2), "gemma3": (13, 2, 2), "gpt_oss": (5, 2, 2)}
TOLERANCE = 2e-5  # of the largest logit in f32: sums in another order, and exp


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("family", COUNTS)
def test_logits_and_tokens_in_f32_are_those_of_the_model_without_them(family, fresh_telemetry):
    from opfacade.integrations.transformers import use_ops

    model, inputs = model_of(family, FAMILIES[family][2]), padded(prompts(5, 23, 17))
    before, tokens = logits(model, inputs), generate(model, inputs)
    replaced = use_ops(model, strict=True)
    assert tuple(len(getattr(replaced, kind)) for kind in ("norm", "activation", "rotary")) == COUNTS[family]
    after = logits(model, inputs)
    assert (after - before).abs().max() <= TOLERANCE * before.abs().max()
    counted = fresh_telemetry.snapshot()
    runs = {op: sum(v["runs"] for sku, v in counted.items() if sku.split("/")[1] == op) for op in ("norm", "rotary")}
    assert runs == {"norm": COUNTS[family][0], "rotary": 2}
    assert generate(model, inputs) == tokens
    replaced.undo()
    assert torch.equal(logits(model, inputs), before)
    assert not [name for name, module in model.named_modules() if {"forward", "_apply_gate"} & module.__dict__.keys()]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_weights_that_load_in_place_count_and_so_do_later_ones(family):
    """A trainer pushes weights into the memory of a model whose modules run as plans, and nothing of the old
    weights is kept.
    """
    from opfacade.integrations.transformers import use_ops

    model, inputs = model_of(family, FAMILIES[family][2]), padded(prompts(5, 23, 17))
    other = copy.deepcopy(model)
    use_ops(model, strict=True)
    for seed in (3, 4):
        logits(model, inputs)  # plans, tables and guards for the old weights
        torch.manual_seed(seed)
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                theirs.copy_(theirs + torch.randn_like(theirs) * 0.1)
                mine.data.copy_(theirs)
        want = logits(other, inputs)
        assert (logits(model, inputs) - want).abs().max() <= TOLERANCE * want.abs().max()


@pytest.mark.parametrize("family", COUNTS)
def test_bf16_is_as_near_to_f32_as_the_model_without_them(family):
    from opfacade.integrations.transformers import use_ops

    peer, inputs = FAMILIES[family][2], padded(prompts(23, 17))
    exact, model = logits(model_of(family, peer), inputs), model_of(family, peer, torch.bfloat16)
    own = (logits(model, inputs) - exact).square().mean().sqrt()
    use_ops(model)
    assert (logits(model, inputs) - exact).square().mean().sqrt() <= 1.25 * own


@pytest.mark.parametrize(
    ("name", "family"), [("LlamaRMSNorm", "llama"), ("Gemma2RMSNorm", "gemma2"), ("GptOssRMSNorm", "gpt_oss")]
)
def test_a_norm_rounds_where_that_of_its_family_rounds(name, family):
    """In bf16 the three differ in more than a tenth of their elements; the f32 sum changes one in some thousand."""
    import importlib

    from opfacade.integrations.transformers.layer_ops import PRESETS, norm

    kind = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)
    torch.manual_seed(3)
    module, x = kind(256, eps=1e-5).bfloat16(), torch.randn(64, 256).bfloat16()
    module.weight.data.normal_(1.0, 0.3)
    with torch.no_grad():
        theirs = module(x)
        differ = {rounding: (norm(x, module.weight, 1e-5, rounding) != theirs).float().mean().item() for rounding in PRESETS}
    own = family.replace("2", "")
    assert differ.pop(own) < 0.002
    assert min(differ.values()) > 0.1


def test_training_and_gradients_run_the_code_of_transformers(fresh_telemetry):
    from opfacade.integrations.transformers import use_ops

    model, inputs = model_of("llama", "sdpa"), padded(prompts(11))
    use_ops(model)
    model(**inputs).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    logits(model.train(), inputs)
    assert not any(v["runs"] for v in fresh_telemetry.snapshot().values())


class _Shifted(torch.nn.Module):
    def __init__(self, own):
        super().__init__()
        self.weight, self.variance_epsilon = own.weight, own.variance_epsilon

    def forward(self, x):
        return self.weight * x + 1.0


class ShiftedRMSNorm(_Shifted):
    """A norm of an unknown family."""


def test_a_module_that_is_not_known_is_left_by_name_and_refused_with_strict():
    from opfacade.integrations.transformers import use_ops

    model = model_of("llama", "sdpa")
    model.model.layers[1].input_layernorm = ShiftedRMSNorm(model.model.norm)
    model.model.layers[0].mlp.act_fn = torch.nn.Tanh()
    with pytest.raises(
        errors.UnsupportedError, match=r"use_ops: model.layers.0.mlp expected a module that use_ops knows"
    ) as raised:
        use_ops(model, strict=True)
    assert "model.layers.1.input_layernorm expected" in str(raised.value)
    assert raised.value.code == "OPF-I009"
    assert "forward" not in model.model.norm.__dict__
    replaced = use_ops(model)
    assert set(replaced.left) == {"model.layers.0.mlp", "model.layers.1.input_layernorm"}
    assert "ShiftedRMSNorm" in str(replaced)
    assert len(replaced.norm) == 4


@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v2"])
def test_a_rotation_of_another_form_is_left(family):
    from opfacade.integrations.transformers import use_ops

    inputs, model = padded(prompts(9)), model_of(family, "eager")
    before = logits(model, inputs)
    replaced = use_ops(model)
    assert replaced.rotary == ()
    assert any(name.endswith("self_attn") for name in replaced.left)
    assert (logits(model, inputs) - before).abs().max() <= TOLERANCE * before.abs().max()


def test_a_rotation_by_wider_angles_gives_what_transformers_gives():
    """Under autocast q and k are bf16, and cosines f32: so are the cached keys."""
    from opfacade.integrations.transformers import use_ops

    model, found = model_of("llama", "sdpa"), []
    for _ in range(2):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found.append(model(**padded(prompts(9)), use_cache=True).past_key_values.layers[0].keys)
        use_ops(model, only=("rotary",))
    assert found[0].dtype == found[1].dtype
    assert torch.equal(*found)


def test_only_some_kinds_are_replaced_and_a_second_call_leaves_them():
    from opfacade.integrations.transformers import use_ops

    model = model_of("llama", "sdpa")
    first = use_ops(model, only=("norm",))
    assert (len(first.norm), first.activation, first.rotary) == (5, (), ())
    second = use_ops(model)
    assert (second.norm, len(second.activation), len(second.rotary)) == ((), 2, 2)
    assert "its forward is replaced already" in second.left["model.norm"]
    second.undo()
    assert "forward" in model.model.norm.__dict__


@pytest.mark.parametrize("given", [{"model": 3}, {"only": ("norms",)}, {"products": "cuda"}])
def test_a_wrong_argument_is_refused(given):
    from opfacade.integrations.transformers import use_ops

    with pytest.raises(errors.ArgumentTypeError, match="OPF-I010"):
        use_ops(**({"model": torch.nn.Linear(2, 2)} | given))


def test_a_copy_of_a_model_has_weights_of_its_own():
    from opfacade.integrations.transformers import use_ops

    model, inputs = model_of("llama", "sdpa"), padded(prompts(11))
    use_ops(model)
    before, other = logits(model, inputs), copy.deepcopy(model)
    with torch.no_grad():
        other.model.norm.weight.mul_(2.0)
    torch.testing.assert_close(logits(other, inputs), 2 * before)
    assert torch.equal(logits(model, inputs), before)


@pytest.mark.parametrize(("family", "tables"), [("llama", 1), ("gemma3", 2)])
def test_layers_of_a_pass_share_a_table_of_angles(family, tables):
    from opfacade.integrations.transformers import layer_ops, use_ops

    model, inputs = model_of(family, "sdpa", num_hidden_layers=4, **_kinds(family)), padded(prompts(11))
    use_ops(model)
    with mock.patch.object(layer_ops, "table_of", wraps=layer_ops.table_of) as made:
        logits(model, inputs)
    assert made.call_count == tables


def _kinds(family):
    return {"layer_types": ["sliding_attention", "full_attention"] * 2} if family == "gemma3" else {}


def test_descriptors_are_kept_for_a_bounded_number_of_sizes():
    from opfacade.integrations.transformers import layer_ops

    makers = [getattr(layer_ops, f"{name}_descriptor") for name in ("norm", "product", "gated", "rotary", "linear")]
    assert [maker.cache_info().maxsize for maker in [*makers, layer_ops.taken]] == [layer_ops.KEPT] * 6


@pytest.mark.parametrize(("family", "norms"), [("gemma3", 7), ("gpt_oss", 3)])
def test_a_model_compiled_as_one_graph_gives_the_logits_of_the_eager_one(family, norms, fresh_telemetry):
    from opfacade.integrations.transformers import use_ops

    experts = {"experts_implementation": "batched_mm"} if family == "gpt_oss" else {}  # a loop over experts is no graph
    model = model_of(family, FAMILIES[family][2], num_hidden_layers=1, layer_types=["sliding_attention"], **experts)
    use_ops(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    inputs, longer = padded(prompts(11, 20)), padded(prompts(13, 27, 4))
    torch.testing.assert_close(logits(compiled, inputs), logits(model, inputs))
    fresh_telemetry.reset()
    with torch.compiler.set_stance("fail_on_recompile"):
        found = logits(compiled, longer)
    counted = fresh_telemetry.snapshot().items()
    assert sum(v["runs"] for sku, v in counted if sku.startswith("norm/")) == norms
    torch.testing.assert_close(found, logits(model, longer))


def _calls():
    x, weight, wide = torch.randn(2, 3, 8, dtype=torch.bfloat16), torch.randn(8), torch.randn(5, 12)
    q, k = (torch.randn(2, 7, heads, 8).transpose(1, 2) for heads in (4, 2))
    angles = torch.randn(1, 7, 8)
    return {
        "norm": (x, weight, 1e-6, "gpt_oss"),
        "product": (wide[:, ::2], wide[:, 1::2], "silu"),
        "gated": (wide, "swiglu_oai", 7.0, 1.702),
        "rotary": (q, k, angles.cos(), angles.sin(), 0),
        "linear": (x, torch.randn(5, 8, dtype=torch.bfloat16), None, '{"backend": "reference"}'),
    }


@pytest.mark.parametrize("name", _calls())
def test_an_op_has_the_shapes_strides_and_effects_that_its_schema_says(name):
    import opfacade.integrations.transformers.layer_ops  # noqa: F401, it defines the ops

    op = getattr(torch.ops.opfacade_transformers, name).default
    torch.library.opcheck(op, _calls()[name], test_utils=("test_schema", "test_faketensor"))
