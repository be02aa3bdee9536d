"""Fakes and adapters have the signatures of the frameworks' sources, at the version that tests/data names."""

import ast
import importlib
import inspect
import textwrap
from pathlib import Path

import pytest

from tests.integrations import signatures
from tests.integrations.fakes import put
from tests.integrations.fakes import sglang as fake_sglang
from tests.integrations.fakes import vllm as fake_vllm

VLLM, SGLANG = signatures.stored("vllm"), signatures.stored("sglang")
BACKEND = VLLM["modules"]["vllm.v1.attention.backend"]
SRT = SGLANG["modules"]
PLACES = {
    "AttentionBackend": SRT["sglang.srt.layers.attention.base_attn_backend"],
    "AttentionType": SRT["sglang.srt.layers.radix_attention"],
    "KVWriteLoc": SRT["sglang.srt.mem_cache.memory_pool"],
    "MHATokenToKVPool": SRT["sglang.srt.mem_cache.memory_pool"],
    "ForwardBatch": SRT["sglang.srt.model_executor.forward_batch_info"],
    "ForwardMode": SRT["sglang.srt.model_executor.forward_batch_info"],
    "SamplingBatchInfo": SRT["sglang.srt.sampling.sampling_batch_info"],
    "Sampler": SRT["sglang.srt.layers.sampler"],
}
SECOND = {name: found for module, own in VLLM["modules"].items() for name, found in own.items() if ".worker.gpu." in module}
SAMPLING = {
    name: found
    for module, own in VLLM["modules"].items()
    for name, found in own.items()
    if ".v1.sample." in module or module == "vllm.v1.outputs"
}


def in_words(function):
    """The parameters of a function in the form of the table."""
    return signatures.parameters(ast.parse(textwrap.dedent(inspect.getsource(function))).body[0])


def declared(cls):
    """Methods that a class itself declares, with their parameters."""
    return signatures.described(ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0])["methods"]


def names(words):
    return [word.rstrip("=") for word in words if not word.startswith("*")]


@pytest.mark.parametrize("name", [name for name in fake_vllm.BACKEND if name in BACKEND])
def test_the_fakes_of_vllm_are_as_in_its_sources(name):
    theirs = BACKEND[name]
    for method, words in declared(fake_vllm.BACKEND[name]).items():
        assert words == theirs["methods"][method], method
    own = list(getattr(fake_vllm.BACKEND[name], "__dataclass_fields__", {}))
    assert own == names(theirs["fields"])[: len(own)]


@pytest.mark.parametrize("name", fake_vllm.SAMPLING)
def test_the_fakes_of_vllms_sampling_are_as_in_its_sources(name):
    theirs, cls = SAMPLING[name], fake_vllm.SAMPLING[name]
    for method, words in declared(cls).items():
        own_state = method.startswith("_") and (method != "__init__" or "Processor" in name)
        assert own_state or words == theirs["methods"][method], method
    assert set(getattr(cls, "__dataclass_fields__", {})) <= set(names(theirs["fields"]))


def test_the_state_that_the_samplers_read_is_as_in_the_sources():
    read = {
        "MinPLogitsProcessor": {"min_p", "min_p_count"}, "LogitBiasLogitsProcessor": {"biases", "bias_tensor"},
        "MinTokensLogitsProcessor": {"min_toks"}, "LogitsProcessors": {"argmax_invariant", "non_argmax_invariant"},
    }  # fmt: skip
    for name, attributes in read.items():
        assert attributes <= set(SAMPLING[name]["attributes"]), name
    assert "logprobs_mode" in SAMPLING["Sampler"]["attributes"]
    assert "kv_cache_layout" in PLACES["MHATokenToKVPool"]["MHATokenToKVPool"]["attributes"]
    assert "is_quantized_kv_cache" in PLACES["MHATokenToKVPool"]["MHATokenToKVPool"]["methods"]
    assert "rl_on_policy_target" in PLACES["Sampler"]["Sampler"]["attributes"]


@pytest.mark.parametrize("name", fake_vllm.SECOND)
def test_the_fakes_of_vllms_second_runner_are_as_in_its_sources(name):
    theirs, cls = SECOND[name], fake_vllm.SECOND[name]
    for method, words in declared(cls).items():
        assert words == theirs["methods"][method], method
    assert {"temperature", "seeds"} <= set(SECOND["SamplingStates"]["attributes"])
    assert "sampling_states" in SECOND["Sampler"]["attributes"]


@pytest.mark.parametrize("name", PLACES)
def test_the_fakes_of_sglang_are_as_in_its_sources(name):
    theirs, cls = PLACES[name][name], getattr(fake_sglang, name)
    for method, words in declared(cls).items():
        assert method == "__init__" or words == theirs["methods"][method], method
    members = {field.rstrip("=") for field in theirs["fields"]}
    assert set(getattr(cls, "__dataclass_fields__", {})) <= members
    assert set(getattr(cls, "__members__", {})) <= members


def test_a_layer_of_sglang_has_the_attributes_that_the_adapter_reads():
    folder = Path(inspect.getsourcefile(importlib.import_module("opfacade.integrations.sglang"))).parent
    read = {
        node.attr
        for source in folder.glob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "layer"
    }
    assert read == set(vars(fake_sglang.layer())) - {"tp_k_head_num"}


def test_the_plug_ins_are_entry_points_of_functions_that_are_there():
    tomllib = pytest.importorskip("tomllib")
    points = tomllib.loads((signatures.DATA.parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        module, _, function = points[group]["opfacade"].partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_the_choices_of_sglang_are_a_list():
    assert SRT["sglang.srt.arg_groups.choices"]["ATTENTION_BACKEND_CHOICES"] == {"value": "list"}


def test_the_registries_are_as_in_the_sources():
    vllm = fake_vllm.registry()["register_backend"]
    assert in_words(vllm) == VLLM["modules"]["vllm.v1.attention.backends.registry"]["register_backend"]["parameters"]
    sglang = fake_sglang.registry()["register_attention_backend"]
    theirs = SRT["sglang.srt.layers.attention.attention_registry"]["register_attention_backend"]
    assert in_words(sglang) == theirs["parameters"]
    samplers = fake_sglang.sampler_registry()["register_sampler_backend"]
    assert in_words(samplers) == SRT["sglang.srt.layers.sampler"]["register_sampler_backend"]["parameters"]


@pytest.fixture
def adapters(monkeypatch):
    from tests.integrations.test_sglang import fakes as sglang_fakes
    from tests.integrations.test_vllm_sampler import fakes as sampler_fakes
    from tests.integrations.vllm_step import fakes as vllm_fakes

    put(monkeypatch, **vllm_fakes(), **sampler_fakes(), **sglang_fakes())


@pytest.mark.parametrize(
    ("module", "own", "theirs"),
    [
        ("vllm.backend", "OpfacadeBackend", [BACKEND["AttentionBackend"]]),
        ("vllm.metadata", "OpfacadeMetadataBuilder", [BACKEND["AttentionMetadataBuilder"]]),
        ("vllm.impl", "OpfacadeImpl", [BACKEND["AttentionImpl"], BACKEND["AttentionImplBase"]]),
        ("sglang.backend", "OpfacadeAttnBackend", [PLACES["AttentionBackend"]["AttentionBackend"]]),
        ("vllm.sampler", "OpfacadeSampler", [SAMPLING["Sampler"]]),
        ("vllm.second_sampler", "OpfacadeRunnerSampler", [SECOND["Sampler"]]),
        ("sglang.sampler", "OpfacadeSampler", [PLACES["Sampler"]["Sampler"]]),
    ],
)
def test_what_an_adapter_overrides_takes_what_the_framework_passes(adapters, module, own, theirs):
    cls = getattr(importlib.import_module(f"opfacade.integrations.{module}"), own)
    overridden = 0
    for base in theirs:
        for method, words in declared(cls).items():
            if method in base["methods"]:
                overridden += 1
                passed, own_names = names(base["methods"][method]), names(words)
                if words[-1:] == ["**more"]:  # it forwards named arguments
                    passed = passed[: len(own_names)]
                assert own_names[: len(passed)] == passed, method
    assert overridden >= 2
