import subprocess
import sys
import threading
import time

import pytest
import torch

from opfacade import Plan, Target, errors, jit, telemetry
from opfacade.jit import JitSpec
from opfacade.plans.cascade import MergeStatesDescriptor

WARM = """
import sys
started = []
kinds = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn"}
def watch(event, args):
    if event in kinds:
        started.append((event, args))
sys.addaudithook(watch)
from opfacade import jit
module = jit.load(jit.JitSpec.of("scale", "testing/scale", "sm_90a", threads=256), allow_build=False)
assert module.run and module.prepare
assert not started, started
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_kernel_is_built_and_loaded_without_a_gpu(built, arch):
    module = jit.load(JitSpec(built.name, built.template, built.params, arch))
    with pytest.raises(ValueError, match=r"Scale.run: x expected a CUDA tensor, got a CPU tensor. \[OPF-C004\]"):
        module.run(torch.ones(4), torch.ones(4), 2.0)
    with pytest.raises((RuntimeError, ValueError), match="OPF-C02"):  # there is no driver, or no such GPU
        module.prepare(1000)


def test_a_warm_load_starts_no_process(built):
    jit.build(built)
    subprocess.run([sys.executable, "-c", WARM], check=True, timeout=240)


def test_a_repeated_load_is_a_lookup(built):
    module = jit.load(built)
    started = time.process_time()
    for _ in range(1000):
        assert jit.load(built) is module
    assert time.process_time() - started < 0.05


def test_threads_share_one_build_and_one_module(tiny):
    found = []
    with telemetry.record() as events:
        threads = [threading.Thread(target=lambda: found.append(jit.load(tiny, label="sku"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    assert len({id(module) for module in found}) == 1
    assert [event["event"] for event in events] == ["build"]


def test_a_build_is_counted_under_its_label_and_a_hit_is_not(tiny, fresh_telemetry):
    with telemetry.record() as events:
        jit.build(tiny, label="sku")
        jit.build(tiny, label="sku")
    assert telemetry.snapshot()["sku"]["builds"] == 1
    (event,) = events
    assert (event["event"], event["sku"], event["key"]) == ("build", "sku", jit.key(tiny))
    assert event["seconds"] > 0


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_a_build_that_is_not_allowed_raises_with_the_key(tiny, way, monkeypatch):
    if way == "variable":
        monkeypatch.setenv("OPFACADE_DISABLE_JIT", "1")
    with pytest.raises(errors.JitDisabledError) as caught:
        jit.load(tiny, allow_build=way == "variable")
    assert jit.key(tiny) in str(caught.value)
    assert "Prebuild" in str(caught.value)


def test_a_machine_without_a_compiler_loads_existing_entries(built, monkeypatch, tmp_path):
    so = jit.build(built)
    monkeypatch.setenv("OPFACADE_NVCC", str(tmp_path / "none"))
    assert jit.is_built(built)
    assert jit.build(built) == so
    assert jit.load(built, allow_build=False).run


def change(root, path):
    place = root / path
    place.write_text(place.read_text() + "\n// edited\n")


@pytest.mark.parametrize(
    "path",
    ["csrc/testing/scale.cu.jinja", "csrc/testing/scale.cc.jinja", "kernels/testing/scale.cuh", "csrc/common/driver.h"],
)
def test_an_edit_of_any_included_source_changes_key_and_digest(scale, root, path):
    before = jit.key(scale), jit.source_digest(scale)
    change(root, path)
    after = jit.key(scale), jit.source_digest(scale)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_an_edit_of_another_file_changes_nothing(scale, root):
    before = jit.key(scale)
    (root / "kernels/testing/unused.h").write_text("// new\n")
    assert jit.key(scale) == before


def test_every_input_of_a_binary_is_in_its_key(scale):
    others = [
        JitSpec.of("scale", "testing/scale", "sm_80", threads=256),
        JitSpec.of("scale", "testing/scale", "sm_90a", threads=128),
        JitSpec.of("scale", "testing/scale", "sm_90a", flags=("-DA", "-DB"), threads=256),
        JitSpec.of("scale", "testing/scale", "sm_90a", flags=("-DB", "-DA"), threads=256),
        scale,
    ]
    assert len({jit.key(spec) for spec in others}) == len(others)
    assert len({jit.source_digest(spec) for spec in others}) == len(others)


def test_the_name_is_not_in_the_source_digest(scale):
    renamed = JitSpec.of("other", "testing/scale", "sm_90a", threads=256)
    assert jit.source_digest(renamed) == jit.source_digest(scale)


def test_the_compiler_is_in_the_key_and_not_in_the_source_digest(scale, monkeypatch):
    before = jit.key(scale), jit.source_digest(scale)
    monkeypatch.setenv("OPFACADE_CXX", "/bin/true")
    assert jit.key(scale) != before[0]
    assert jit.source_digest(scale) == before[1]


def test_forget_picks_up_an_edit(tiny, root):
    module = jit.load(tiny)
    change(root, "csrc/testing/tiny.cc.jinja")
    assert jit.load(tiny) is module
    jit.forget(tiny)
    assert jit.load(tiny) is not module


def test_a_plan_reports_whether_its_kernel_is_built(cache_dir):
    merge = MergeStatesDescriptor(num_states=2, total_num_rows=3, num_heads=2, head_dim=64, dtype="f16")
    plan = Plan.select(merge, target=Target.parse("sm_90a"))
    assert Plan.select(merge, target=Target.cpu()).cache_state == "none"
    assert plan.cache_state == "absent"
    plan.compile()
    assert plan.cache_state == "shared"
