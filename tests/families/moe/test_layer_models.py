"""The mixture-of-experts layer against the layers of transformers."""

import math

import pytest
import torch

from opfacade.plans.moe import FusedMoeArgs, FusedMoeDescriptor, Router
from tests.families.moe.layers import ran


class Config:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def _config(name, **fields):
    config = pytest.importorskip("transformers").AutoConfig.for_model(name, **fields)
    config._experts_implementation = "eager"
    return config


def module_of(name, cls, config):
    """A module of transformers with random f64 weights."""
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
def test_the_layer_equals_the_experts_of_transformers(name):
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


def test_weights_at_the_input_equal_the_layer_of_llama_4():
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


def test_a_shared_expert_equals_the_layer_of_deepseek():
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
