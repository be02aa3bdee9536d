"""A user's kernel that spills is built and loaded. Telemetry, `explain` and the doctor report it, in later processes too."""

import json
from types import SimpleNamespace

import pytest

from opfacade import Target, errors, explain, jit, telemetry
from opfacade.jit import findings
from opfacade.jit.findings import SassFinding
from opfacade.select import built_code
from opfacade.select.registry import examples
from opfacade.tools import doctor
from tests.jit.slow_sources import SPILLS, STACK

SKU = "a/tiny/cuda"


@pytest.fixture(autouse=True)
def _as_users(monkeypatch, fresh_telemetry):
    monkeypatch.delenv("OPFACADE_JIT_STRICT")


@pytest.fixture(params=[SPILLS, STACK], ids=["spills", "stack"])
def slow(request, tiny, root):
    (root / "csrc/testing/tiny.cu.jinja").write_text(request.param)
    return tiny


def test_a_kernel_with_slow_code_is_built_and_its_entry_records_it(slow):
    library = jit.build(slow)
    (found,) = findings.of_library(library)
    used = json.loads((library.parent / "meta.json").read_text())["resources"]["tiny"]
    assert found.kernel == "tiny"
    assert not found.accepted
    if found.name == "spills":
        words = f"spills registers: {used['spill_stores']} bytes of stores, {used['spill_loads']} bytes of loads"
        assert used["spill_stores"] > 0
    else:
        words = f"uses a stack frame of {used['stack']} bytes"
        assert (found.name, used["stack"]) == ("local-memory", 128)
    assert found.text == words


def test_each_load_of_slow_code_is_counted_and_reported_even_if_the_binary_existed(slow):
    jit.build(slow)  # stands for a build by another process
    with telemetry.record() as events:
        jit.load(slow, label=SKU)
        jit.load(slow, label="another")
    told = str(findings.of_library(jit.build(slow))[0])
    assert [e for e in events if e["event"] == "spill"] == [
        {"event": "spill", "sku": SKU, "kernels": [told]},
        {"event": "spill", "sku": "another", "kernels": [told]},
    ]
    assert telemetry.snapshot()[SKU]["spills"] == 1


def test_a_kernel_without_slow_code_is_not_counted(tiny):
    jit.load(tiny, label=SKU)
    assert telemetry.stats(SKU).spills.value() == 0
    assert jit.slow_code(tiny) == ()


def test_a_fixed_kernel_is_no_longer_counted(slow, root):
    jit.load(slow, label=SKU)
    (root / "csrc/testing/tiny.cu.jinja").write_text('extern "C" __global__ void tiny() {}\n')
    jit.forget()
    jit.load(slow, label=SKU)
    assert telemetry.stats(SKU).spills.value() == 1


def test_strict_mode_also_refuses_an_existing_binary(slow, monkeypatch):
    kept = jit.build(slow)
    monkeypatch.setenv("OPFACADE_JIT_STRICT", "1")
    with pytest.raises(errors.CompileError, match=r"OPF-J033") as caught:
        jit.build(slow)
    assert caught.value.key == kept.parent.name
    assert "OPFACADE_JIT_STRICT" in caught.value.hint


def test_findings_that_a_source_allows_are_reported_too(tiny, root, monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_STRICT", "1")
    (root / "csrc/testing/tiny.cu.jinja").write_text(f"// allows: spills\n{SPILLS}")
    jit.load(tiny, label=SKU)
    assert telemetry.stats(SKU).spills.value() == 1
    assert [found.accepted for found in jit.slow_code(tiny)] == [True]


@pytest.fixture
def chosen(slow):
    return SimpleNamespace(candidate=SimpleNamespace(compiles=True, jit_specs=lambda descriptor, target: (slow,)))


def test_explain_reports_slow_code_of_a_cached_binary(chosen, slow, monkeypatch):
    assert built_code.slow_code(chosen, None, None) == ()  # the kernel is not built
    told = str(findings.of_library(jit.build(slow))[0])
    assert built_code.slow_code(chosen, None, None) == (told,)
    monkeypatch.setattr(built_code, "slow_code", lambda option, descriptor, target: (told,))
    found = explain(examples()[0], target=Target.cpu())
    assert f"  built    {told} (slower than it could be, and right)" in found.report().splitlines()
    assert told not in str(found)  # str() opens no file
    assert found.as_dict()["slow_code"] == [told]


def test_explain_with_an_unusable_cache_reports_no_slow_code(chosen, cache_dir):
    (cache_dir / "v1").chmod(0o777)
    assert built_code.slow_code(chosen, None, None) == ()


def test_the_doctor_names_slow_kernels_and_succeeds(slow):
    jit.build(slow, label=SKU)
    told = str(findings.of_library(jit.build(slow))[0])
    found = doctor.diagnose()
    assert found.cache["slow"] == [f"{SKU}: {told}"]
    (problem,) = (p for p in found.problems if "slower" in p.what)
    assert problem.severity == "note"
    assert f"{SKU}: {told}" in problem.what


@pytest.mark.parametrize("broken", [None, 5, [5], [{}], [{"name": "spell"}], {"name": "spills"}])
def test_a_malformed_record_gives_no_findings(broken):
    assert findings.recorded({"findings": broken}) == ()


def test_a_record_of_findings_can_be_read_back():
    written = (SassFinding("spills", "k", "8 bytes", True), SassFinding("local-memory", "l", "9"))
    assert findings.recorded({"findings": json.loads(json.dumps(findings.record(written)))}) == written
