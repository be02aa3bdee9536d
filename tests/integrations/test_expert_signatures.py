"""Fakes and adapters of experts have the signatures of vLLM's and SGLang's sources, which tests/data records."""

import pytest

from tests.integrations import signatures
from tests.integrations.fakes import put, sglang_experts, vllm_experts
from tests.integrations.test_signatures import declared, in_words, names

KEPT = {project: signatures.stored(project)["modules"] for project in ("vllm", "sglang")}


def of(project, name):
    return next(own[name] for own in KEPT[project].values() if name in own)


def classes():
    op = vllm_experts.custom_op()
    made = {"CustomOp": op["CustomOp"], "UnquantizedFusedMoEMethod": vllm_experts.method_of(op["CustomOp"])}
    for name in (
        "MoEActivation", "FusedMoEConfig", "FusedMoEParallelConfig", "FusedMoEMethodBase", "UnquantizedMoeBackend",
        "QuantizeMethodBase",
    ):  # fmt: skip
        made[name] = getattr(vllm_experts, name)
    modules = sglang_experts.modules()[1]
    theirs = {
        "MoeRunner": modules["sglang__srt__layers__moe__moe_runner"]["MoeRunner"],
        "UnquantizedFusedMoEMethod": modules["sglang__srt__layers__quantization__unquant"]["UnquantizedFusedMoEMethod"],
    }
    for name in (
        "MoeRunnerBackend", "MoeA2ABackend", "RegisteredMoeRunnerBackend", "MoeRunnerConfig", "TritonMoeQuantInfo",
        "DispatchMoeRunnerCore", "StandardTopKOutput", "StandardDispatchOutput", "StandardCombineInput",
    ):  # fmt: skip
        theirs[name] = getattr(sglang_experts, name)
    return [("vllm", *one) for one in made.items()] + [("sglang", *one) for one in theirs.items()]


# Predicates that the real class inherits, and a method whose optional arguments the fake omits.
_APART = {
    "MoeRunnerBackend": {"is_triton"}, "RegisteredMoeRunnerBackend": {"is_triton"},
    "sglang UnquantizedFusedMoEMethod": {"__init__"},
}  # fmt: skip


@pytest.mark.parametrize(("project", "name", "cls"), classes(), ids=lambda one: one if isinstance(one, str) else "")
def test_the_fakes_are_as_in_the_sources(project, name, cls):
    theirs, apart = of(project, name), _APART.get(name, set()) | _APART.get(f"{project} {name}", set())
    for method, words in declared(cls).items():
        assert method in apart or words == theirs["methods"][method], method
    fields = names(theirs["fields"])
    own = {*getattr(cls, "__dataclass_fields__", {}), *getattr(cls, "_fields", ()), *getattr(cls, "__members__", {})}
    assert own <= set(fields) | set(theirs["methods"]) | {"intermediate_size_per_partition"}
    if hasattr(cls, "_fields"):
        assert list(cls._fields) == fields


def test_the_registries_are_as_in_the_sources():
    modules = sglang_experts.modules()[1]
    runner = modules["sglang__srt__layers__moe__moe_runner"]["register_moe_runner_core"]
    assert in_words(runner) == of("sglang", "register_moe_runner_core")["parameters"]
    utils = modules["sglang__srt__layers__moe__utils"]
    assert in_words(utils["resolve_moe_runner_backend"]) == of("sglang", "resolve_moe_runner_backend")["parameters"]
    for name in ("get_moe_a2a_backend", "get_moe_runner_backend"):
        assert of("sglang", name)["parameters"] == []
    assert of("sglang", "MOE_RUNNER_BACKEND_CHOICES") == {"value": "list"}
    assert of("vllm", "op_registry_oot") == {"value": "dict"}


def test_what_an_adapter_reads_of_a_layer_is_there():
    layer = of("vllm", "RoutedExperts")
    for name in ("swiglu_limit", "swiglu_alpha", "swiglu_beta", "apply_router_weight_on_input"):
        assert name in layer["attributes"]
    assert "expert_map" in layer["methods"]
    assert "use_all2all_kernels" in of("vllm", "FusedMoEParallelConfig")["methods"]
    assert {"no_combine", "layer"} <= set(names(of("sglang", "MoeRunnerConfig")["fields"]))
    assert "moe_runner_config" in of("sglang", "FusedMoE")["attributes"]


def test_what_an_adapter_overrides_takes_what_the_framework_passes(monkeypatch):
    from tests.integrations.test_sglang import fakes as sglang_fakes
    from tests.integrations.test_vllm_experts import fakes as vllm_fakes

    put(monkeypatch, **vllm_fakes(), **sglang_fakes())
    from opfacade.integrations.sglang.experts import OpfacadeRunnerCore, choose_runner
    from opfacade.integrations.vllm.experts import OpfacadeFusedMoEMethod

    bases = ("FusedMoEMethodBase", "UnquantizedFusedMoEMethod", "QuantizeMethodBase")
    theirs = {method: words for base in bases for method, words in of("vllm", base)["methods"].items()}
    for method, words in declared(OpfacadeFusedMoEMethod).items():
        assert names(words)[: len(names(theirs[method]))] == names(theirs[method]), method
    core = of("sglang", "DispatchMoeRunnerCore")["methods"]
    for method, words in declared(OpfacadeRunnerCore).items():
        assert names(words) == names(core[method]), method
    own = of("sglang", "UnquantizedFusedMoEMethod")["methods"]["create_moe_runner"]
    assert [word for word in in_words(choose_runner(None)) if word != "self"] == own
