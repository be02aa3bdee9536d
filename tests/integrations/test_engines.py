"""The adapters raise typed errors if vLLM or SGLang is missing or lacks a name, and warn about an untested release."""

import sys
import warnings
from types import SimpleNamespace

import pytest

from opfacade.base import notices
from opfacade.errors import ReleaseWarning, UnsupportedError
from opfacade.integrations import sglang, vllm
from opfacade.integrations.engines import SGLANG, VLLM, Engine
from tests.integrations import signatures, test_sglang, test_vllm_sampler, vllm_step
from tests.integrations.fakes import put

ENTRIES = [(VLLM, vllm.register), (VLLM, vllm.register_sampler), (SGLANG, sglang.register)]
NAMES = [f"{engine.name} {call.__name__}" for engine, call in ENTRIES]


@pytest.fixture
def engines(monkeypatch):
    """Both engines, as fakes, without any earlier warning."""
    put(monkeypatch, **(vllm_step.fakes() | test_vllm_sampler.fakes() | test_sglang.fakes()))
    monkeypatch.setattr(notices, "_told", {})
    from opfacade.integrations.vllm import backend

    def select():
        """Each function that selects a backend or a sampler."""
        backend.OpfacadeBackend.get_impl_cls()
        vllm.register_sampler()
        sglang._make(test_sglang.Server(4, (9,), (1,)).runner())
        sglang._make_sampler()

    return SimpleNamespace(select=select)


def told(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in found if one.category is ReleaseWarning]


@pytest.mark.parametrize(("engine", "call"), ENTRIES, ids=NAMES)
def test_without_the_engine_each_entry_says_how_to_get_it(monkeypatch, engine, call):
    monkeypatch.setitem(sys.modules, engine.name, None)
    command = rf"-m pip install {engine.name}=={engine.tested} brings it\."
    with pytest.raises(UnsupportedError, match=rf"{engine.name} expected to be installed, got .*{command} \[OPF-I006\]"):
        call()


@pytest.mark.parametrize(("engine", "call"), ENTRIES, ids=NAMES)
def test_a_release_without_a_name_that_is_imported_is_refused_with_both_releases(monkeypatch, engine, call):
    put(monkeypatch, **{engine.name: {"__version__": "0.1.2"}})
    expected = rf"{engine.name}\.register: {engine.name} expected {engine.tested}, got 0\.1\.2: No module named .*OPF-I005"
    with pytest.raises(UnsupportedError, match=expected):
        call()


OTHERS = {
    "vllm: names that are none of an enum": (vllm.register, "vllm.v1.attention.backends.registry", "AttentionBackendEnum", {}),
    "vllm: another signature": (vllm.register, "vllm.v1.attention.backends.registry", "register_backend", lambda backend: None),
    "sglang: no decorator": (
        sglang.register, "sglang.srt.layers.attention.attention_registry", "register_attention_backend", lambda name: None
    ),
    "sglang: fixed choices": (sglang.register, "sglang.srt.arg_groups.choices", "ATTENTION_BACKEND_CHOICES", ("triton",)),
    "sglang: no function": (sglang.register, "sglang.srt.layers.sampler", "register_sampler_backend", None),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_a_release_with_a_registry_of_another_form_is_refused_with_both_releases(monkeypatch, engines, case):
    call, module, name, other = OTHERS[case]
    engine = VLLM if call is vllm.register else SGLANG
    monkeypatch.setattr(sys.modules[module], name, other)
    monkeypatch.setattr(sys.modules[engine.name], "__version__", "0.99.1", raising=False)
    with pytest.raises(
        UnsupportedError, match=rf"{engine.name}\.register: .* expected {engine.tested}, got 0\.99\.1: .*OPF-I005"
    ):
        call()


def test_an_import_that_fails_inside_the_engine_keeps_its_error():
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), Engine("engine", "1.0").importing():
        import no_such_package  # noqa: F401


def test_another_release_gives_one_warning_where_the_backend_is_chosen_and_not_before(monkeypatch, engines):
    for engine in (VLLM, SGLANG):
        monkeypatch.setattr(sys.modules[engine.name], "__version__", "0.99.1", raising=False)
    assert told(vllm.register) == told(sglang.register) == []
    first, second = told(engines.select)
    for message, engine in ((first, VLLM), (second, SGLANG)):
        assert message.startswith(
            f"{engine.name}: 0.99.1 is installed, and opfacade's adapter was tested with {engine.tested}."
        )
        assert f"-m pip install {engine.name}=={engine.tested}" in message
    assert told(engines.select) == []


@pytest.mark.parametrize("suffix", ["", "+cu130"])
def test_the_tested_release_and_one_that_does_not_say_are_told_nothing_of(monkeypatch, engines, suffix):
    assert told(engines.select) == []
    for engine in (VLLM, SGLANG):
        monkeypatch.setattr(sys.modules[engine.name], "__version__", engine.tested + suffix, raising=False)
    assert told(engines.select) == []


def test_a_filter_that_makes_errors_of_warnings_ends_no_engine(monkeypatch, engines):
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.99.1", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engines.select()


def test_the_tested_releases_are_those_of_the_signatures():
    assert {engine.tested for engine in (VLLM, SGLANG)} == {signatures.stored(e.name)["version"] for e in (VLLM, SGLANG)}
