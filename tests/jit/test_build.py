import json
import shlex
from pathlib import Path

import pytest

from opfacade import errors, jit
from opfacade.jit import JitSpec, cache, toolchain
from opfacade.jit.build import resources
from opfacade.jit.runner import command_line
from tests.jit.fakes import working_below


def test_a_device_code_error_names_line_command_and_log(tiny, root):
    (root / "csrc/testing/tiny.cu.jinja").write_text("__global__ void k() {\n  no_such_name = 1;\n}\n")
    with pytest.raises(errors.CompileError) as caught:
        jit.build(tiny)
    error = caught.value
    assert 'tiny.cu(2): error: identifier "no_such_name" is undefined' in str(error).splitlines()[0]
    assert "nvcc -cubin" in str(error)
    assert error.argv[0].endswith("nvcc")
    assert error.returncode not in (0, None)
    assert error.key == jit.key(tiny)
    assert "no_such_name" in error.log_tail
    assert "no_such_name" in Path(error.log_path).read_text()
    assert error.log_path in str(error)
    assert (Path(error.log_path).parent / "tiny.cu").is_file()
    assert not list((cache.root() / "tmp").iterdir())


def test_a_binding_error_names_its_compiler(tiny, root):
    (root / "csrc/testing/tiny.cc.jinja").write_text("int broken( { return {{ value }}; }\n")
    with pytest.raises(errors.CompileError, match=r"tiny.cc:1:\d+: error") as caught:
        jit.build(tiny)
    assert caught.value.argv[-1] == "tiny.cc"


def test_a_failed_build_is_tried_again(tiny, root):
    good = (root / "csrc/testing/tiny.cc.jinja").read_text()
    (root / "csrc/testing/tiny.cc.jinja").write_text("#error {{ value }}\n")
    with pytest.raises(errors.CompileError):
        jit.build(tiny)
    (root / "csrc/testing/tiny.cc.jinja").write_text(good)
    assert jit.build(tiny).is_file()


def test_a_build_that_exceeds_the_timeout_is_killed(tiny, cache_dir, monkeypatch, tmp_path):
    slow = tmp_path / "slow"
    asked = 'case "$1" in -print*) exit 1 ;; esac'  # the script answers queries and compiles forever
    slow.write_text(f"#!/bin/sh\n{asked}\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("OPFACADE_CXX", str(slow))
    monkeypatch.setenv("OPFACADE_JIT_TIMEOUT", "0.5")
    with pytest.raises(errors.CompileTimeout, match=r"0.5 s"):
        jit.build(tiny)
    assert not working_below(cache_dir)


def test_the_users_environment_does_not_reach_the_compilers(built_tiny, monkeypatch, cache_dir, tmp_path):
    plain = jit.build(built_tiny)
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "another/cache"))
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.setenv(name, "-DSNEAK -G")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", "/nowhere")
    monkeypatch.setenv("LD_PRELOAD", "")
    other = jit.build(built_tiny)
    assert other != plain
    assert other.parent.name == plain.parent.name
    assert other.read_bytes() == plain.read_bytes()


def test_two_builds_in_different_places_give_the_same_bytes(built, monkeypatch, tmp_path):
    first = jit.build(built)
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "a different/place"))
    second = jit.build(built)
    assert first.name == second.name
    assert (first.parent / "kernel.cubin").read_bytes() == (second.parent / "kernel.cubin").read_bytes()


def test_shell_characters_in_paths_are_not_interpreted(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "a $(touch pwned); `id` & 'b"))
    monkeypatch.chdir(tmp_path)
    assert jit.build(tiny).is_file()
    assert not list(tmp_path.rglob("pwned"))


def test_commands_are_quoted_for_the_shell():
    argv = ("c++", "-I", "/a b/x*?(y)", "~")
    assert shlex.split(command_line(argv)) == list(argv)


@pytest.mark.parametrize("char", "\n$`\"'\\;&|<>")
def test_paths_that_nvcc_would_pass_to_a_shell_are_refused(char):
    with pytest.raises(errors.ToolchainError, match="OPF-J014"):
        command_line(("c++", f"a{char}b"))


def test_flags_reach_nvcc_in_order(tiny):
    spec = JitSpec(tiny.name, tiny.template, tiny.params, tiny.arch, ("-DA=1", "--maxrregcount=32"))
    nvcc = json.loads((jit.build(spec).parent / "meta.json").read_text())["commands"][0]
    assert nvcc[nvcc.index("-DA=1") + 1] == "--maxrregcount=32"


def test_a_source_that_needs_a_newer_ptxas_is_refused(tiny, root):
    (root / "csrc/testing/tiny.cu.jinja").write_text("// requires: ptxas >= 99.1\n")
    with pytest.raises(errors.ToolchainError, match=r"expected ptxas 99.1 or later"):
        jit.build(tiny)


def test_the_resource_usage_of_each_kernel_is_read_from_ptxas():
    log = """\
ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas info    : Compiling entry function 'b' for 'sm_80'
ptxas info    : Used 10 registers
"""
    assert resources(log) == {
        "a": {"stack": 8, "spill_stores": 4, "spill_loads": 12, "registers": 255},
        "b": {"registers": 10},
    }


def test_an_error_about_a_missing_compiler_package_contains_the_pip_command(tmp_path):
    (tmp_path / "bin").mkdir()
    tools = toolchain.Toolchain(tmp_path / "bin/nvcc", Path("/bin/true"), tmp_path / "memo.json")
    with pytest.raises(errors.ToolchainError, match=r"expected cuda.h and cuda_runtime.h"):
        _ = tools.cuda_include
