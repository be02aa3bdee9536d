import os
import subprocess
import sys

import pytest

from opfacade import errors, jit
from opfacade.base.installation import install_cuda
from opfacade.jit import toolchain
from tests.support.python_path import python_path


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A machine without nvcc, and a function that installs a fake one."""
    for name in ("OPFACADE_NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/c++").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain, "_nvidia_packages", lambda: [tmp_path / "site/nvidia"])
    monkeypatch.setattr(toolchain, "_DEFAULT", tmp_path / "local/bin/nvcc")

    def put(path, text="\x7fELF"):
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
        return place

    return put


def found(tmp_path):
    return toolchain.find(tmp_path / "memo.json").nvcc


def test_a_compiler_is_searched_in_variable_pip_cuda_home_path_and_default(host, tmp_path, monkeypatch):
    order = []
    order.append(host("local/bin/nvcc"))
    assert found(tmp_path) == order[-1]
    order.append(host("bin/nvcc"))
    assert found(tmp_path) == order[-1]
    order.append(host("home/bin/nvcc"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert found(tmp_path) == order[-1]
    order.append(host("site/nvidia/cu13/bin/nvcc"))
    assert found(tmp_path) == order[-1]
    order.append(host("mine/nvcc"))
    monkeypatch.setenv("OPFACADE_NVCC", str(order[-1]))
    assert found(tmp_path) == order[-1]


def test_without_a_compiler_the_error_lists_the_searched_places_and_a_remedy(host, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(errors.ToolchainError) as caught:
        found(tmp_path)
    for part in ("CUDA_HOME: /nowhere/bin/nvcc", "site/nvidia/cu13", "PATH: nvcc", install_cuda()):
        assert part in str(caught.value)


def test_a_wrong_explicit_choice_is_an_error(host, tmp_path, monkeypatch):
    host("local/bin/nvcc")
    monkeypatch.setenv("OPFACADE_NVCC", "/no/nvcc")
    with pytest.raises(errors.ToolchainError, match="OPFACADE_NVCC is /no/nvcc"):
        found(tmp_path)


def test_a_wrapper_script_that_names_nvcc_is_read_and_not_run(host, tmp_path, monkeypatch):
    real = host("kit/bin/nvcc")
    host("bin/nvcc", f'#!/bin/sh\nexec {real} "$@"\n')
    monkeypatch.setattr(subprocess, "run", None)
    assert found(tmp_path) == real


def test_a_wrapper_script_that_names_no_nvcc_is_run_once(host, tmp_path):
    real, log = host("kit/bin/nvcc"), tmp_path / "asked"
    host("bin/nvcc", f"#!/bin/sh\necho asked >> {log}\necho '#$ TOP={real.parent.parent}' >&2\n")
    assert [found(tmp_path), found(tmp_path)] == [real, real]
    assert log.read_text() == "asked\n"


def test_a_wrapper_script_without_a_target_is_an_error(host, tmp_path):
    host("bin/nvcc", "#!/bin/sh\nexit 1\n")
    with pytest.raises(errors.ToolchainError, match="OPF-J012"):
        found(tmp_path)


def test_the_identity_depends_on_content_and_not_on_the_path(host, tmp_path):
    for kit in ("one", "two"):
        host(f"{kit}/bin/nvcc")
        host(f"{kit}/bin/ptxas", "xV13.5.37\0")
        host(f"{kit}/include/cuda.h")
        host(f"{kit}/include/cuda_runtime.h")
    memo = tmp_path / "memo.json"
    one, two = (toolchain.Toolchain(tmp_path / kit / "bin/nvcc", tmp_path / "bin/c++", memo) for kit in ("one", "two"))
    assert one.identity == two.identity
    assert one.ptxas_release == (13, 5)
    text = memo.read_text()
    assert toolchain.Toolchain(one.nvcc, one.cxx, memo).identity == one.identity
    assert memo.read_text() == text


def test_a_replaced_compiler_changes_the_identity(host, tmp_path):
    nvcc, memo = host("kit/bin/nvcc"), tmp_path / "memo.json"
    host("kit/include/cuda.h")
    host("kit/include/cuda_runtime.h")
    before = toolchain.Toolchain(nvcc, tmp_path / "bin/c++", memo).identity
    stat = nvcc.stat()
    nvcc.write_text("\x7fELG")  # same size
    os.utime(nvcc, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert toolchain.Toolchain(nvcc, tmp_path / "bin/c++", memo).identity != before


def test_every_program_that_nvcc_runs_is_in_the_identity(host, tmp_path):
    host("kit/include/cuda.h")
    host("kit/include/cuda_runtime.h")
    proper = host("lib/cc1plus", "one")
    driver = host("driver", f"#!/bin/sh\necho called >> {tmp_path}/calls\n[ $1 = -print-prog-name=cc1plus ] && echo {proper}\n")
    tools = [toolchain.Toolchain(host("kit/bin/nvcc"), driver, tmp_path / "memo.json") for _ in range(3)]
    one, again = tools[0].identity, tools[1].identity
    assert one == again
    assert (tmp_path / "calls").read_text() == "called\n"
    proper.write_text("another")
    assert tools[2].identity.keys() == one.keys()
    assert {name for name in one if tools[2].identity[name] != one[name]} == {"cc1plus"}


def test_a_damaged_memo_is_written_again(host, tmp_path):
    host("local/bin/nvcc")
    (tmp_path / "memo.json").write_text("[1, {")
    assert found(tmp_path).is_file()


def test_the_newest_toolkit_of_pip_is_used_and_reported(host, tmp_path):
    host("site/nvidia/cu13/bin/nvcc")
    newer = host("site/nvidia/cu14/bin/nvcc")
    tools = toolchain.find(tmp_path / "memo.json")
    assert (tools.nvcc, tools.origin) == (newer, "pip")


def test_the_release_of_nvcc_is_read_from_the_program(host, tmp_path):
    host("local/bin/nvcc", "xCuda compilation tools, release 13.5, V13.5.37\nBuild")
    tools = toolchain.find(tmp_path / "memo.json")
    assert (tools.nvcc_release, tools.ptxas_release) == ((13, 5), (0, 0))


def test_a_disassembler_is_found_beside_the_compiler_in_pip_or_on_path(host, tmp_path):
    host("local/bin/nvcc")
    tools = toolchain.find(tmp_path / "memo.json")
    assert toolchain.find_disassembler(tools) is None
    for path in ("bin/nvdisasm", "site/nvidia/cu13/bin/nvdisasm", "local/bin/nvdisasm"):
        assert toolchain.find_disassembler(tools) != host(path)
        assert toolchain.find_disassembler(tools) == tmp_path / path


BARE = """
import os, sys
from opfacade import errors, jit
from opfacade.jit import toolchain
from tests.support.problems import decode, run
toolchain._nvidia_packages, toolchain._DEFAULT = list, toolchain.Path("/nowhere/nvcc")
scale = jit.JitSpec.of("scale", "testing/scale", "sm_90a", threads=256)
assert jit.load(scale).run
descriptor, args = run(decode([6]))
assert not args.o.isnan().any()
try:
    jit.load(jit.JitSpec.of("scale", "testing/scale", "sm_90a", threads=128))
except errors.ToolchainError as error:
    print(error)
"""


def test_without_a_compiler_cached_kernels_load_and_the_error_contains_a_remedy(built):
    env = {k: v for k, v in os.environ.items() if k.startswith("OPFACADE_") and k != "OPFACADE_NVCC"}
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        env=env | {"PATH": "/nowhere", "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    for part in ("Probed: PATH: nvcc; default: /nowhere/nvcc", install_cuda(), "[OPF-J010]"):
        assert part in done.stdout


def test_an_older_ptxas_is_refused_where_13_3_is_required(tiny, root, monkeypatch):
    monkeypatch.setattr(toolchain.Toolchain, "ptxas_release", (13, 0))
    (root / "csrc/testing/tiny.cu.jinja").write_text("// requires: ptxas >= 13.3\n")
    with pytest.raises(errors.ToolchainError, match=r"expected ptxas 13.3 or later, but .* has 13.0") as caught:
        jit.build(tiny)
    assert install_cuda() in str(caught.value)
    monkeypatch.setattr(toolchain.Toolchain, "ptxas_release", (13, 3))
    assert jit.build(tiny).is_file()


def test_ninja_is_found_without_its_package_attribute(host, tmp_path, monkeypatch):
    import ninja

    monkeypatch.setattr(ninja, "BIN_DIR", "")
    with pytest.raises(errors.ToolchainError, match="pip install ninja"):
        toolchain.find_ninja()
    place = host("bin/ninja")
    assert toolchain.find_ninja() == place
