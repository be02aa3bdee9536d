"""Experts of SGLang on fakes: a model whose layers run as plans gives the tokens and numbers of SGLang's own runner."""

import pytest
import torch
from torch import nn

from opfacade import errors
from tests.integrations.fakes import SimpleNamespace, put
from tests.integrations.fakes import sglang_experts as fake
from tests.integrations.test_sglang import fakes

HIDDEN, WIDTH, EXPERTS, TOP_K, VOCAB = 32, 24, 6, 3, 61
UNQUANT = "sglang__srt__layers__quantization__unquant"


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's method, the flags of its command line, and its choices."""
    flags, modules = fake.modules()
    choices = {"ATTENTION_BACKEND_CHOICES": ["triton"], "MOE_RUNNER_BACKEND_CHOICES": ["auto", "triton"]}
    put(monkeypatch, **{**fakes(), **modules, "sglang__srt__arg_groups__choices": choices})
    monkeypatch.delitem(__import__("sys").modules, "opfacade.integrations.sglang.experts", raising=False)
    method = modules[UNQUANT]["UnquantizedFusedMoEMethod"]
    return SimpleNamespace(method=method, flags=flags, choices=choices["MOE_RUNNER_BACKEND_CHOICES"])


def hooked(sglang):
    """The method under --moe-runner-backend opfacade."""
    from opfacade.integrations.sglang import register

    register()
    sglang.flags.runner = fake.RegisteredMoeRunnerBackend("opfacade")
    return sglang.method


def config(**changed):
    given = {
        "num_experts": EXPERTS, "num_local_experts": EXPERTS, "hidden_size": HIDDEN, "top_k": TOP_K,
        "intermediate_size_per_partition": WIDTH, "params_dtype": torch.float32,
    }  # fmt: skip
    return fake.MoeRunnerConfig(**(given | changed))


def filled(module, seed=0):
    """Weights are loaded in place after construction, as an engine does."""
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return module


def layer(method, given=None, **options):
    return filled(fake.FusedMoE(method, given or config(), **options))


def routed(rows=7, experts=EXPERTS, dtype=torch.float32):
    generator = torch.Generator().manual_seed(9)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:TOP_K] for _ in range(rows)]).int()
    x = torch.randn(rows, HIDDEN, generator=generator).to(dtype)
    return x, torch.rand(rows, TOP_K, generator=generator), ids


def exact(made, *call):
    info = fake.TritonMoeQuantInfo(
        made.w13_weight, made.w2_weight, getattr(made, "w13_weight_bias", None), getattr(made, "w2_weight_bias", None)
    )
    return fake.exact(made.dispatched(*call), info, made.moe_runner_config)


class Model(nn.Module):
    """Two layers of experts with residuals between an embedding and a head."""

    def __init__(self, method, **options):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)
        self.gates = nn.ModuleList([nn.Linear(HIDDEN, EXPERTS, bias=False) for _ in range(2)])
        self.layers = nn.ModuleList([fake.FusedMoE(method, config(routed_scaling_factor=1.7), **options) for _ in range(2)])
        filled(self.requires_grad_(False), 3)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for gate, own in zip(self.gates, self.layers, strict=True):
            weights, ids = gate(x).softmax(-1).topk(TOP_K, -1)
            x = nn.functional.normalize(x + own(x, weights, ids.int()), dim=-1) * HIDDEN**0.5
        return self.head(x)


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_model_has_the_tokens_of_sglangs_own_runner(sglang, with_bias, fresh_telemetry):
    tokens = torch.arange(VOCAB)
    want = Model(sglang.method, with_bias=with_bias)(tokens)
    model = Model(hooked(sglang), with_bias=with_bias)
    fresh_telemetry.reset()
    got = model(tokens)
    assert sum(one["runs"] for name, one in fresh_telemetry.snapshot().items() if "fused_moe" in name) == 2
    assert got.argmax(-1).tolist() == want.argmax(-1).tolist()
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 * float(want.abs().max()))


def test_the_choice_is_on_the_command_line_and_others_keep_their_runner(sglang):
    method = hooked(sglang)
    hooked(sglang)  # a second call changes nothing
    assert sglang.choices == ["auto", "triton", "opfacade"]
    assert layer(method).moe_runner_config.runner_backend.value == "opfacade"
    sglang.flags.runner = fake.MoeRunnerBackend.AUTO
    assert layer(method).moe_runner_config.runner_backend is fake.MoeRunnerBackend.TRITON


CASES = {
    "silu": {}, "a scale of all weights": {"routed_scaling_factor": 2.5}, "clamped": {"swiglu_limit": 0.4},
    "gelu": {"activation": "gelu"}, "gelu_tanh": {"activation": "gelu_tanh"},
    "oai": {"gemm1_alpha": 1.702, "gemm1_clamp_limit": 0.6},
    "oai in halves": {"gemm1_alpha": 1.702, "gemm1_clamp_limit": 0.6, "gate_up_interleaved": False},
    "silu alone": {"is_gated": False}, "gelu alone": {"activation": "gelu", "is_gated": False},
    "relu2 alone": {"activation": "relu2", "is_gated": False},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("at_input", [False, True])
def test_a_layer_is_that_of_the_formula(sglang, case, at_input):
    made = layer(hooked(sglang), config(**CASES[case], apply_router_weight_on_input=at_input), with_bias="oai" in case)
    call = routed()
    kept = call[0].clone()
    torch.testing.assert_close(made(*call).double(), exact(made, *call), rtol=1e-5, atol=1e-5)
    assert torch.equal(call[0], kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_round_between_steps_alone(sglang, dtype):
    made = layer(hooked(sglang), config(params_dtype=dtype))
    call = routed(9, dtype=dtype)
    got, want = made(*call), exact(made, *call)
    assert got.dtype == dtype
    u = torch.finfo(dtype).eps / 2
    room = torch.zeros_like(want)
    for row, slot in ((r, s) for r in range(9) for s in range(TOP_K)):
        expert, weight = int(call[2][row, slot]), float(call[1][row, slot])
        gate, up = (made.w13_weight[expert].double() @ call[0][row].double()).chunk(2)
        h, down = nn.functional.silu(gate) * up, made.w2_weight[expert].double()
        # The slope of silu is below 1.1; gate and up are rounded, then h, then the result of down.
        moved = u * (1.1 * gate.abs() * up.abs() + 2 * h.abs())
        room[row] += weight * (down.abs() @ moved + u * (down @ h).abs())
    assert bool(((got.double() - want).abs() <= 1.02 * (room + u * want.abs()) + 1e-6).all())


def test_weights_that_load_in_place_later_count_from_the_next_call_on(sglang):
    made, call = layer(hooked(sglang)), routed()
    first, addresses = made(*call), [one.data_ptr() for one in made.parameters()]
    filled(made, 5)
    second = made(*call)
    assert [one.data_ptr() for one in made.parameters()] == addresses
    assert not torch.equal(first, second)
    torch.testing.assert_close(second.double(), exact(made, *call), rtol=1e-5, atol=1e-5)


def test_ids_of_other_ranks_and_of_padding_have_no_part(sglang):
    local = torch.tensor([-1, -1, 0, 1, 2, -1], dtype=torch.int32)
    made = layer(hooked(sglang), config(num_local_experts=3), local=local)
    x, weights, ids = routed(11)
    ids[3] = -1
    got = made(x, weights, ids)
    torch.testing.assert_close(got.double(), exact(made, x, weights, ids), rtol=1e-5, atol=1e-5)
    assert bool((got[3] == 0).all())
    assert made(x[:0], weights[:0], ids[:0]).shape == (0, HIDDEN)


REFUSED = {
    "another function": ({"activation": "situ"}, "activation expected one of silu, gelu, gelu_tanh, got situ"),
    "one without gates": ({"activation": "gelu_tanh", "is_gated": False}, "activation expected .*without gates, got gelu_tanh"),
    "results of each choice": ({"no_combine": True}, "no_combine expected False"),
    "a limit behind silu": ({"gemm1_clamp_limit": 7.0}, "gemm1_clamp_limit expected None without gemm1_alpha, got 7.0"),
    "a slope without a limit": ({"gemm1_alpha": 1.7}, "gemm1_clamp_limit expected a number with gemm1_alpha, got None"),
    "a limit of gelu": ({"activation": "gelu", "swiglu_limit": 10.0}, "swiglu_limit expected None with gelu, got 10.0"),
    "f64": ({"params_dtype": torch.float64}, "params_dtype expected f16, bf16 or f32, got torch.float64"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_plan_runs_is_refused_by_name_when_the_layer_is_made(sglang, case):
    changed, words = REFUSED[case]
    with pytest.raises(errors.UnsupportedError, match=f"sglang.experts: {words}") as raised:
        layer(hooked(sglang), config(**changed))
    assert raised.value.code == "OPF-I001"


def test_another_dispatcher_is_refused(sglang):
    method = hooked(sglang)
    sglang.flags.a2a = fake.MoeA2ABackend.DEEPEP
    with pytest.raises(errors.UnsupportedError, match="moe_a2a_backend expected none, got deepep"):
        layer(method)


def test_weights_in_another_form_and_lora_are_refused(sglang):
    made = layer(hooked(sglang))
    given, runner = made.dispatched(*routed()), made.quant_method.runner
    info = fake.TritonMoeQuantInfo(made.w13_weight, made.w2_weight, use_fp8_w8a8=True)
    with pytest.raises(errors.UnsupportedError, match="use_fp8_w8a8 expected None"):
        runner.run(given, info)
    with pytest.raises(errors.UnsupportedError, match="quant_info expected weights without quantisation, got SimpleNamespace"):
        runner.run(given, SimpleNamespace())
    info.use_fp8_w8a8 = False
    with pytest.raises(errors.UnsupportedError, match="hooks expected None"):
        runner.run(given, info, "lora")


def test_a_gpu_without_a_kernel_is_refused_with_its_reason(sglang, monkeypatch):
    from opfacade import Target

    method = hooked(sglang)
    from opfacade.integrations.sglang import experts

    monkeypatch.setattr(experts.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(experts, "here", lambda: Target.parse("sm_70"))
    with pytest.raises(errors.UnsupportedError, match="layer expected what a kernel takes, got fused_moe: "):
        layer(method)


@pytest.mark.gpu
def test_a_captured_graph_replays_with_other_rows_ids_and_weights(sglang):
    made = layer(hooked(sglang), config(params_dtype=torch.bfloat16)).cuda()
    call = [one.cuda() for one in routed(dtype=torch.bfloat16)]
    made(*call)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = made(*call)
    for turn in range(3):
        call[2].copy_(torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(7)]).int())
        call[0].normal_()
        made.w2_weight.data.normal_(0, 0.2 + turn / 10)
        graph.replay()
        assert torch.equal(out, made(*call))
        want = exact(made, *call).float()
        torch.testing.assert_close(out.float(), want, rtol=0.05, atol=0.02 * float(want.abs().max()))
