"""vLLM's experts on fakes: layers that run as plans give the tokens and numbers of vLLM's own method."""

import pytest
import torch
from torch import nn

from opfacade import errors
from tests.integrations.fakes import SimpleNamespace, put
from tests.integrations.fakes import vllm_experts as fake

HIDDEN, WIDTH, EXPERTS, TOP_K, VOCAB = 32, 24, 6, 3, 61
KIND = fake.MoEActivation
MOE = "vllm__model_executor__layers__fused_moe__"


def fakes():
    op = fake.custom_op()
    own = fake.method_of(op["CustomOp"])
    return {
        "vllm": {"envs": SimpleNamespace(VLLM_BATCH_INVARIANT=False), "__version__": "0.33.0"},
        "vllm__model_executor__custom_op": op,
        f"{MOE}activation": {"MoEActivation": KIND},
        f"{MOE}fused_moe_method_base": {"FusedMoEMethodBase": fake.FusedMoEMethodBase},
        f"{MOE}oracle__unquantized": {"UnquantizedMoeBackend": fake.UnquantizedMoeBackend},
        f"{MOE}unquantized_fused_moe_method": {"UnquantizedFusedMoEMethod": own},
    }


@pytest.fixture
def vllm(monkeypatch):
    """vLLM's own method class, whose instances run as plans after `register_experts`."""
    given = fakes()
    put(monkeypatch, **given)
    monkeypatch.delitem(__import__("sys").modules, "opfacade.integrations.vllm.experts", raising=False)
    return SimpleNamespace(
        method=given[f"{MOE}unquantized_fused_moe_method"]["UnquantizedFusedMoEMethod"],
        replaced=given["vllm__model_executor__custom_op"]["op_registry_oot"],
        envs=given["vllm"]["envs"],
    )


def hooked(vllm):
    from opfacade.integrations.vllm import register_experts

    register_experts()
    return vllm.method


def config(**changed):
    given = {"num_experts": EXPERTS, "experts_per_token": TOP_K, "hidden_dim": HIDDEN, "num_local_experts": EXPERTS}
    return fake.FusedMoEConfig(**(given | {"intermediate_size_per_partition": WIDTH} | changed))


def filled(module, seed=0):
    """Weights are loaded in place after construction, as an engine does."""
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    for one in module.modules():
        if isinstance(one, fake.RoutedExperts):
            one.quant_method.process_weights_after_loading(one)
    return module


def layer(method, moe=None, **options):
    return filled(fake.RoutedExperts(method, moe or config(), **options))


def routed(rows=7, experts=EXPERTS, dtype=torch.float32):
    generator = torch.Generator().manual_seed(9)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:TOP_K] for _ in range(rows)]).int().view(rows, TOP_K)
    x = torch.randn(rows, HIDDEN, generator=generator).to(dtype)
    return x, torch.rand(rows, TOP_K, generator=generator), ids


class Model(nn.Module):
    """Two layers of experts with residuals between an embedding and a head."""

    def __init__(self, method, moe):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)
        self.gates = nn.ModuleList([nn.Linear(HIDDEN, EXPERTS, bias=False) for _ in range(2)])
        self.layers = nn.ModuleList([fake.RoutedExperts(method, moe) for _ in range(2)])
        filled(self.requires_grad_(False), 3)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for gate, own in zip(self.gates, self.layers, strict=True):
            weights, ids = gate(x).softmax(-1).topk(TOP_K, -1)
            x = nn.functional.normalize(x + own.forward_modular(x, weights, ids.int()), dim=-1) * HIDDEN**0.5
        return self.head(x)


@pytest.mark.parametrize("kind", [KIND.SILU, KIND.SWIGLUOAI])
def test_a_model_has_the_tokens_of_vllms_own_method(vllm, kind, fresh_telemetry):
    moe = config(activation=kind, has_bias=kind is KIND.SWIGLUOAI)
    tokens = torch.arange(VOCAB)
    want = Model(vllm.method, moe)(tokens)
    model = Model(hooked(vllm), moe)
    fresh_telemetry.reset()
    got = model(tokens)
    assert sum(one["runs"] for name, one in fresh_telemetry.snapshot().items() if "fused_moe" in name) == 2
    assert got.argmax(-1).tolist() == want.argmax(-1).tolist()
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 * float(want.abs().max()))


CASES = {
    "silu": {}, "silu with a limit": {"swiglu_limit": 0.4}, "gelu": {"activation": KIND.GELU},
    "gelu_tanh": {"activation": KIND.GELU_TANH}, "oai": {"activation": KIND.SWIGLUOAI, "has_bias": True},
    "oai in halves": {
        "activation": KIND.SWIGLUOAI_UNINTERLEAVE, "swiglu_limit": 0.6, "swiglu_alpha": 1.4, "swiglu_beta": 0.5,
    },
    "oai in halves without numbers": {"activation": KIND.SWIGLUOAI_UNINTERLEAVE, "swiglu_limit": 0.6},
    "silu alone": {"activation": KIND.SILU_NO_MUL}, "gelu alone": {"activation": KIND.GELU_NO_MUL},
    "gelu_tanh alone": {"activation": KIND.GELU_TANH_NO_MUL}, "relu2 alone": {"activation": KIND.RELU2_NO_MUL},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("at_input", [False, True])
def test_a_layer_is_that_of_the_formula(vllm, case, at_input):
    made = layer(hooked(vllm), config(**CASES[case]), apply_router_weight_on_input=at_input)
    call = routed()
    torch.testing.assert_close(made.forward_modular(*call).double(), fake.exact(made, *call), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_round_between_steps_alone(vllm, dtype):
    made = layer(hooked(vllm), config(in_dtype=dtype))
    call = routed(9, dtype=dtype)
    got, want = made.forward_modular(*call), fake.exact(made, *call)
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


def test_weights_that_load_in_place_later_count_from_the_next_call_on(vllm):
    made, call = layer(hooked(vllm)), routed()
    first, addresses = made.forward_modular(*call), [one.data_ptr() for one in made.parameters()]
    filled(made, 5)
    second = made.forward_modular(*call)
    assert [one.data_ptr() for one in made.parameters()] == addresses
    assert not torch.equal(first, second)
    torch.testing.assert_close(second.double(), fake.exact(made, *call), rtol=1e-5, atol=1e-5)
    first_expert = made.w13_weight.data.clone()
    made.w13_weight.data[[0, 4]] = made.w13_weight.data[[4, 0]]  # experts are moved between slots
    torch.testing.assert_close(made.forward_modular(*call).double(), fake.exact(made, *call), rtol=1e-5, atol=1e-5)
    assert not torch.equal(made.w13_weight, first_expert)


MAPS = {
    "first half": [0, 1, 2, -1, -1, -1], "second half": [-1, -1, -1, 0, 1, 2], "round robin": [0, -1, 1, -1, 2, -1],
    "moved": [2, -1, -1, 1, -1, 0], "replicas": [0, 1, 2, -1, -1, 1],
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_a_map_of_experts_leaves_those_of_this_rank(vllm, name):
    made = layer(hooked(vllm), config(num_local_experts=3), expert_map=torch.tensor(MAPS[name], dtype=torch.int32))
    x, weights, ids = routed(11)
    ids[3] = torch.tensor([-1, -1, -1])  # padding
    ids[5, 1] = -1
    got = made.forward_modular(x, weights, ids)
    torch.testing.assert_close(got.double(), fake.exact(made, x, weights, ids), rtol=1e-5, atol=1e-5)
    assert bool((got[3] == 0).all())


def test_the_ranks_of_expert_parallelism_sum_to_the_whole(vllm):
    method = hooked(vllm)
    whole, call, total = layer(method), routed(), torch.zeros(7, HIDDEN)
    for rank in range(2):
        own = torch.full((EXPERTS,), -1, dtype=torch.int32)
        own[rank * 3 : rank * 3 + 3] = torch.arange(3, dtype=torch.int32)
        part = fake.RoutedExperts(method, config(num_local_experts=3), expert_map=own)
        part.w13_weight.data.copy_(whole.w13_weight[rank * 3 : rank * 3 + 3])
        part.w2_weight.data.copy_(whole.w2_weight[rank * 3 : rank * 3 + 3])
        total += part.forward_modular(*call)
    torch.testing.assert_close(total, whole.forward_modular(*call), rtol=1e-5, atol=1e-5)


def test_ids_of_64_bits_weights_of_16_and_a_call_without_rows(vllm):
    made = layer(hooked(vllm))
    x, weights, ids = routed()
    want = made.forward_modular(x, weights.half().float(), ids)
    assert torch.equal(made.forward_modular(x, weights.half(), ids.long()), want)
    assert made.forward_modular(x[:0], weights[:0], ids[:0]).shape == (0, HIDDEN)


def _lora(moe, options):
    moe.is_lora_enabled = True


def _other_backend(moe, options):
    moe.moe_backend = "flashinfer_cutlass"


def _deepep(moe, options):
    moe.moe_parallel_config = fake.FusedMoEParallelConfig(True, "deepep_low_latency", True)


def _situ(moe, options):
    moe.activation = KIND.SITU


def _gelu_with_limit(moe, options):
    moe.activation, moe.swiglu_limit = KIND.GELU, 7.0


def _no_limit(moe, options):
    moe.activation = KIND.SWIGLUOAI_UNINTERLEAVE


def _wide(moe, options):
    moe.in_dtype = torch.float64


REFUSED = {
    "LoRA": (_lora, "is_lora_enabled expected False"), "another backend": (_other_backend, "moe_backend expected auto"),
    "another dispatch": (_deepep, "all2all_backend expected allgather_reducescatter, got deepep_low_latency"),
    "another function": (_situ, "activation expected one of silu, .*got situ"),
    "a limit that has no meaning": (_gelu_with_limit, "swiglu_limit expected None with gelu, got 7.0"),
    "a limit that is missing": (_no_limit, "swiglu_limit expected a number, got None"),
    "f64": (_wide, "params_dtype expected f16, bf16 or f32.*got torch.float64"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_plan_runs_is_refused_by_name_when_the_layer_is_made(vllm, case):
    change, words = REFUSED[case]
    moe, options = config(), {}
    change(moe, options)
    with pytest.raises(errors.UnsupportedError, match=f"vllm.experts: {words}") as raised:
        fake.RoutedExperts(hooked(vllm), moe, **options)
    assert raised.value.code == "OPF-I001"


def test_batch_invariant_mode_is_refused(vllm):
    vllm.envs.VLLM_BATCH_INVARIANT = True
    with pytest.raises(errors.UnsupportedError, match="VLLM_BATCH_INVARIANT expected False"):
        layer(hooked(vllm))


def test_a_gpu_without_a_kernel_is_refused_with_its_reason(vllm, monkeypatch):
    from opfacade import Target

    method = hooked(vllm)
    from opfacade.integrations.vllm import experts

    monkeypatch.setattr(experts, "here", lambda: Target.parse("sm_70"))
    with pytest.raises(errors.UnsupportedError, match="layer expected what a kernel takes, got fused_moe: "):
        layer(method, config(device="cuda"))
    monkeypatch.setattr(experts, "here", lambda: Target.parse("sm_90a"))
    monkeypatch.setattr("opfacade.backends.cuda.ptxas.release", lambda *_: None)  # independent of the installed compiler
    layer(method, config(device="cuda", in_dtype=torch.bfloat16, hidden_dim=64, intermediate_size_per_partition=64))


def test_rows_of_another_dtype_are_refused(vllm):
    made = layer(hooked(vllm))
    x, weights, ids = routed()
    with pytest.raises(errors.DTypeError, match=r"vllm.experts: w13_weight expected .*torch.bfloat16.*got torch.float32"):
        made.forward_modular(x.bfloat16(), weights, ids)


def test_registering_again_changes_nothing_and_another_plug_in_is_named(vllm):
    hooked(vllm)
    first = dict(vllm.replaced)
    hooked(vllm)
    assert vllm.replaced == first
    vllm.replaced["UnquantizedFusedMoEMethod"] = type("Other", (vllm.method,), {})
    with pytest.raises(errors.UnsupportedError, match="UnquantizedFusedMoEMethod expected not replaced, got Other"):
        hooked(vllm)


def test_without_vllm_the_message_says_how_to_install_it():
    from opfacade.integrations.vllm import register_experts

    with pytest.raises(errors.UnsupportedError, match=r"vllm==0\.33\.0") as raised:
        register_experts()
    assert raised.value.code == "OPF-I006"


@pytest.mark.gpu
def test_a_captured_graph_replays_with_other_rows_ids_and_weights(vllm):
    made = layer(hooked(vllm), config(device="cuda", in_dtype=torch.bfloat16, num_local_experts=3),
                 expert_map=torch.tensor(MAPS["moved"], dtype=torch.int32)).cuda()  # fmt: skip
    call = [one.cuda() for one in routed(dtype=torch.bfloat16)]
    made.forward_modular(*call)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = made.forward_modular(*call)
    for turn in range(3):
        call[2].copy_(torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(7)]).int())
        call[0].normal_()
        made.w2_weight.data.normal_(0, 0.2 + turn / 10)
        graph.replay()
        assert torch.equal(out, made.forward_modular(*call))
        want = fake.exact(made, *call).float()
        torch.testing.assert_close(out.float(), want, rtol=0.05, atol=0.02 * float(want.abs().max()))
