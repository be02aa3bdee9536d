"""The three switches of kernel writers, and how an edit reaches a running process."""

import json

import pytest

from opfacade import jit
from opfacade.jit import cache, reload, toolchain
from opfacade.jit.clangd import text, write
from opfacade.observe import instruments


def commands(path):
    return json.loads((path.parent / "meta.json").read_text())["commands"]


def test_debug_and_lineinfo_give_other_binaries_and_verbose_does_not(scale, monkeypatch):
    keys = {jit.key(scale)}
    monkeypatch.setenv("OPFACADE_JIT_VERBOSE", "1")
    assert {jit.key(scale)} == keys
    for name in ("OPFACADE_JIT_LINEINFO", "OPFACADE_JIT_DEBUG"):
        monkeypatch.setenv(name, "1")
        keys.add(jit.key(scale))
    assert len(keys) == 3


def test_a_machine_without_a_compiler_does_not_load_a_debug_build_as_an_ordinary_one(built, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_NVCC", str(tmp_path / "none"))
    assert jit.is_built(built)
    monkeypatch.setenv("OPFACADE_JIT_DEBUG", "1")
    assert not jit.is_built(built)


def test_debug_reaches_both_compilers(tiny, monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_DEBUG", "1")
    nvcc, cxx, _ = commands(jit.build(tiny))
    assert "-G" in nvcc
    assert {"-g", "-O0"} <= set(cxx)


def test_lineinfo_adds_only_line_numbers(tiny, monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_LINEINFO", "1")
    nvcc, cxx, _ = commands(jit.build(tiny))
    assert "-lineinfo" in nvcc
    assert "-G" not in nvcc
    assert "-g" not in cxx


def test_verbose_prints_commands_and_output_and_adds_no_flag(tiny, monkeypatch, capfd):
    monkeypatch.setenv("OPFACADE_JIT_VERBOSE", "1")
    nvcc, *_ = commands(jit.build(tiny))
    assert "nvcc -cubin -O3" in capfd.readouterr().out
    assert "-G" not in nvcc


def test_generated_sources_are_stored_in_the_entry(built):
    entry = jit.build(built).parent
    assert "scale_block<kThreads>(p)" in (entry / "scale.cu").read_text()
    assert "OPF_KERNEL(scale_kernel" in (entry / "scale.cc").read_text()


class Sku:
    backend, id = "cuda", "a/b/cuda"


def test_the_next_call_of_a_plan_uses_an_edited_source(tiny, root, monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_RELOAD", "1")
    monkeypatch.delenv("OPFACADE_LOG", raising=False)
    loaded = []

    def make():
        module = jit.load(tiny)
        return lambda args, workspace: loaded.append(module)

    launch = instruments.launcher(make, None, Sku())
    launch(None, None)
    launch(None, None)
    header = root / "kernels/testing/scale_params.h"
    header.write_text(header.read_text() + "\n// edited\n")
    launch(None, None)
    assert loaded[0] is loaded[1]
    assert loaded[2] is not loaded[0]


def test_without_reload_the_launcher_is_not_wrapped(monkeypatch):
    for name in ("OPFACADE_JIT_RELOAD", "OPFACADE_LOG"):
        monkeypatch.delenv(name, raising=False)

    def launch(args, workspace):
        pass

    assert instruments.launcher(lambda: launch, None, Sku()) is launch


@pytest.mark.parametrize("change", ["edit", "new", "gone"])
def test_the_signature_changes_with_any_file(root, change):
    before, place = reload.signature(), root / "kernels/testing/scale.cuh"
    assert reload.signature() == before
    if change == "edit":
        place.write_text(place.read_text() + " ")
    elif change == "new":
        (root / "csrc/testing/new.h").write_text("")
    else:
        place.unlink()
    assert reload.signature() != before


def test_the_clangd_configuration_contains_all_include_paths(root, cache_dir, tmp_path):
    tools = toolchain.find(cache.toolchain_memo())
    device, host = text(tools, "sm_80").split("---\n")
    assert f'"-I{root}"' in device
    assert '"--cuda-gpu-arch=sm_80"' in device
    assert "tvm_ffi" in host
    assert "tvm_ffi" not in device
    assert write() == (root / ".clangd", cache.root() / ".clangd")
    assert (root / ".clangd").read_text() == text(tools, "sm_90a")
