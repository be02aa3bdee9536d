"""The host library: one for all kernels of a process, with bounded memory, independent of the location of the kernels."""

import subprocess

import pytest

from opfacade import Plan, Preference, Target, errors, jit
from opfacade.backends.cuda.host.direct import Direct, KernelCall
from opfacade.jit import JitSpec, cache
from opfacade.jit.cache import bundle
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.testing import inputs
from tests.jit.conftest import HOST_FUNCTIONS, TINY
from tests.jit.host.test_contract import DECODE, HOST

MERGE = MergeStatesDescriptor(num_states=2, total_num_rows=3, num_heads=2, head_dim=64, dtype="f16")
SM90 = Target.parse("sm_90a")
CUDA = Preference(backend="cuda")


def exported(library):
    """The names that a library exports."""
    table = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in table.splitlines()}


def needed(library):
    """The names of the libraries that a library loads."""
    table = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return {line.rpartition("[")[2].rstrip("]") for line in table.splitlines() if "(NEEDED)" in line}


@pytest.fixture
def kernels(driver, scale_cache, monkeypatch):
    """Loads kernel libraries of one source root, each together with the host library."""
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(scale_cache.parent / "root"))
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(scale_cache))
    return lambda name: (jit.load(JitSpec.of(name, "testing/quick", "sm_90a")), jit.load(jit.HOST))


class Call:
    """The replay path of a kernel for one argument bundle."""

    def __init__(self, driver, kernel, host, args, scalar=2, launches=1):
        self.driver, self.kernel, self.args, self.launches = driver, kernel, args, launches
        self.direct = Direct(host, KernelCall(kernel.run, (scalar, 0.5, launches), False, 0, HOST), DECODE)
        self.direct.learn(args)
        assert self.direct.paths.fast(args, None, True)

    def __call__(self, args=None):
        return self.direct.paths.replay(id(args or self.args), id(None)) == 0

    def is_replayed(self):
        """True if a call launches without a run of the binding."""
        called, launches = self.kernel.called(), self.driver.launches
        assert self()
        assert self.driver.launches == launches + self.launches
        return self.kernel.called() == called

    def recorded(self):
        return self() and self() and self.is_replayed()


def test_a_kernel_library_exports_only_the_functions_that_a_plan_calls(built):
    assert exported(jit.build(built)) == {"__tvm_ffi_run", "__tvm_ffi_prepare"}
    assert exported(jit.build(jit.HOST)) == {f"__tvm_ffi_{name}" for name in HOST_FUNCTIONS}


def test_the_host_library_links_neither_python_nor_torch_nor_a_driver(built):
    assert not [name for name in needed(jit.build(jit.HOST)) if any(part in name for part in ("python", "torch", "cuda"))]


def test_kernels_share_one_cache_and_replay_their_own_calls(driver, kernels):
    (one, host), (two, same) = kernels("quick"), kernels("other")
    assert host is same
    args = inputs.make_args(DECODE, seed=1)
    before = host.cached_launches()
    calls = [Call(driver, kernel, host, args) for kernel in (one, two)]
    assert all(call.recorded() for call in calls)
    assert host.cached_launches() == before + 2
    for call in calls:
        assert call()
        assert driver.last().call == call.kernel.called()  # the parameters of the last launch of this binding
        assert call.direct.paths.fast(args, None, True)
    del call, calls
    assert host.cached_launches() == before


def test_the_cache_of_a_process_has_a_maximum_size_in_bytes(driver, kernels):
    kernel, host = kernels("quick")
    args, calls = inputs.make_args(DECODE, seed=1), []
    most, seen = 8 << 20, 0
    for scalar in range(60):
        calls.append(Call(driver, kernel, host, args, scalar, launches=4))
        bundles = [inputs.make_args(DECODE, seed=1) for _ in range(100)]
        for bundle_ in bundles:
            assert calls[-1].direct.paths.fast(bundle_, None, False)
            assert calls[-1](bundle_)
            assert calls[-1](bundle_)
        seen = max(seen, host.cached_bytes())
        assert host.cached_bytes() <= most
    assert seen > most // 2
    assert host.cached_launches() < 4096
    assert calls[-1].recorded()
    del calls
    assert host.cached_bytes() < most // 100


def test_launches_of_a_kernel_with_another_interface_are_not_recorded(driver, kernels, root, cache_dir):
    """The interface was edited while the process runs, so newer kernels use an older host library."""
    _, host = kernels("quick")
    header = root / "csrc/common/launch_recorder.h"
    header.write_text(header.read_text().replace("kAbi = 1", "kAbi = 2"))
    jit.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFACADE_SOURCE_ROOT", str(root))
        patch.setenv("OPFACADE_CACHE_DIR", str(cache_dir))
        kernel = jit.load(JitSpec.of("edited", "testing/quick", "sm_90a"))
    call = Call(driver, kernel, host, inputs.make_args(DECODE, seed=1))
    for _ in range(4):
        assert not call.is_replayed()


def test_a_plan_builds_and_reports_both_libraries(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    plan = Plan.select(MERGE, CUDA, SM90)
    plan.compile()
    assert jit.is_built(jit.HOST)
    assert jit.is_built(plan.jit_spec)
    assert plan.cache_state == "shared"
    for path in jit.build(jit.HOST).parent.iterdir():
        path.unlink()
    assert plan.cache_state == "absent"
    assert jit.is_built(plan.jit_spec)


def test_a_plan_that_must_not_build_names_a_missing_host_library(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    plan = Plan.select(MERGE, Preference(backend="cuda", jit="never"), SM90)
    jit.build(plan.jit_spec)
    with pytest.raises(errors.JitDisabledError, match=r"^host for host .* is not built"):
        plan.compile()


def test_a_bundle_of_one_architecture_contains_the_host_library(toolkit, tmp_path):
    jit.build(TINY)
    jit.build(jit.HOST)
    assert bundle.export(cache.shared(), tmp_path / "b", "sm_80") == sorted([jit.key(TINY), jit.key(jit.HOST)])
    assert bundle.export(cache.shared(), tmp_path / "b", "sm_75") == [jit.key(jit.HOST)]


def test_a_library_without_device_code_does_not_run_nvcc(toolkit):
    place = jit.build(jit.HOST).parent
    assert toolkit.calls() == []
    assert {path.name for path in place.iterdir()} == {
        "meta.json", "build.log", "build.ninja", "host.cc", jit.build(jit.HOST).name,
    }  # fmt: skip
    assert "-O2" in (place / "meta.json").read_text()
