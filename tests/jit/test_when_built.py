"""The decision whether a kernel is built, loaded or refused is made before a compiler is searched."""

from dataclasses import replace
from pathlib import Path

import pytest

from opfacade import Plan, Preference, Target, jit
from opfacade.errors import JitDisabledError, ToolchainError
from opfacade.jit import JitSpec, rendered, runner, toolchain
from opfacade.jit.codegen import Sources
from opfacade.plans.cascade import EXAMPLES

SPEC = JitSpec.of("name", "a/template", "sm_90a", value=1)
SOURCES = Sources("device", "binding", ())
BUILT, FOUND = Path("/built/kernel.so"), Path("/found/kernel.so")


@pytest.fixture
def cache(monkeypatch):
    """A cache that returns `found` and `portable`, and the list of builds."""
    state = {"found": None, "portable": None, "builds": []}
    monkeypatch.setattr(rendered, "sources", lambda spec: SOURCES)
    monkeypatch.setattr(rendered, "refresh", lambda spec: SOURCES)
    monkeypatch.setattr(toolchain, "find", lambda memo: None)
    monkeypatch.setattr(jit.identity, "key", lambda *given: "key")
    monkeypatch.setattr(jit, "_ready", lambda spec, sources: state["found"])
    monkeypatch.setattr(jit, "_portable", lambda spec, sources: state["portable"])
    monkeypatch.setattr(jit._Build, "run", lambda self: (state["builds"].append(self.spec), BUILT)[1])
    return state


def test_a_missing_kernel_is_built(cache):
    assert jit.build(SPEC) == BUILT
    assert cache["builds"] == [SPEC]


def test_an_existing_kernel_is_not_built(cache):
    cache["found"] = FOUND
    assert jit.build(SPEC) == jit.build(SPEC, allow_build=False) == FOUND
    assert cache["builds"] == []


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_missing_kernel_that_must_not_be_built_is_refused_with_its_key(cache, monkeypatch, how):
    if how == "variable":
        monkeypatch.setenv("OPFACADE_DISABLE_JIT", "1")
    with pytest.raises(JitDisabledError, match=r"\(key key\) is not built.*OPF-J040"):
        jit.build(SPEC, allow_build=how != "argument")
    cache["portable"] = FOUND  # an entry of another compiler is better than none
    assert jit.build(SPEC, allow_build=how != "argument") == FOUND
    assert cache["builds"] == []


@pytest.mark.parametrize(
    ("states", "wanted"),
    [(("shared", "shared"), "shared"), (("shared", "absent"), "absent"), (("private", "shared"), "private")],
)
def test_a_plan_is_cached_only_if_its_kernel_and_the_host_library_are(monkeypatch, states, wanted):
    for one, other in (states, states[::-1]):
        monkeypatch.setattr(jit, "cache_state", lambda spec, one=one, other=other: other if spec is jit.HOST else one)
        assert jit.cache_state_for_plan(SPEC) == wanted


@pytest.mark.parametrize(("wish", "allowed"), [("build", True), ("never", False)])
def test_a_plan_that_must_not_build_raises(monkeypatch, wish, allowed):
    given = []
    monkeypatch.setattr(jit, "build_for_plan", lambda spec, *, allow_build, label: given.append(allow_build))
    plan = Plan.select(EXAMPLES[0], Preference(jit=wish, backend="cuda"), Target.parse("sm_90a"))
    plan.compile()
    assert given == [allowed]

    def launcher(descriptor, target, sku, allow):
        given.append(allow)
        return lambda args, workspace: None

    object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=launcher))
    plan._load()
    assert given == [allowed, allowed]


def test_without_a_compiler_an_entry_of_another_machine_is_found(monkeypatch):
    def missing(memo):
        raise ToolchainError("none")

    monkeypatch.setattr(toolchain, "find", missing)
    monkeypatch.setattr(jit, "_portable", lambda spec, sources: FOUND)
    assert jit._ready(SPEC, SOURCES) == FOUND


def test_a_build_has_the_time_limit_of_the_environment_variable(monkeypatch, tmp_path):
    waited = []
    monkeypatch.setenv("OPFACADE_JIT_TIMEOUT", "77")
    monkeypatch.setattr(runner, "_wait", lambda process, seconds: (waited.append(seconds), process.wait())[1])
    assert runner.run(tmp_path, (runner.BuildStep("out", (), ("/usr/bin/touch", "out")),)) == 0
    assert waited == [77]
    assert (tmp_path / "out").exists()


def test_a_build_by_another_process_is_not_counted(monkeypatch, fresh_telemetry):
    monkeypatch.setattr(jit.identity, "key", lambda *given: "key")
    monkeypatch.setattr(jit.cache, "obtain", lambda key, output, make, use: FOUND)
    assert jit._Build(SPEC, SOURCES, None, "label").run() == FOUND
    assert fresh_telemetry.snapshot().get("label", {}).get("builds", 0) == 0
