import os
import subprocess

import pytest

from opfacade import errors
from opfacade.jit import toolchain


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A machine without any nvcc, and a function that puts one somewhere."""
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


def test_the_order_is_variable_pip_cuda_home_path_default(host, tmp_path, monkeypatch):
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


def test_nothing_found_lists_what_was_probed_and_the_way_out(host, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(errors.ToolchainError) as caught:
        found(tmp_path)
    for part in ("CUDA_HOME: /nowhere/bin/nvcc", "site/nvidia/cu13", "PATH: nvcc", 'pip install "opfacade[cuda]"'):
        assert part in str(caught.value)


def test_a_wrong_explicit_choice_is_an_error(host, tmp_path, monkeypatch):
    host("local/bin/nvcc")
    monkeypatch.setenv("OPFACADE_NVCC", "/no/nvcc")
    with pytest.raises(errors.ToolchainError, match="OPFACADE_NVCC is /no/nvcc"):
        found(tmp_path)


def test_a_wrapper_that_names_the_real_nvcc_is_read_not_run(host, tmp_path, monkeypatch):
    real = host("kit/bin/nvcc")
    host("bin/nvcc", f'#!/bin/sh\nexec {real} "$@"\n')
    monkeypatch.setattr(subprocess, "run", None)
    assert found(tmp_path) == real


def test_a_wrapper_that_names_nothing_is_asked_once(host, tmp_path):
    real, log = host("kit/bin/nvcc"), tmp_path / "asked"
    host("bin/nvcc", f"#!/bin/sh\necho asked >> {log}\necho '#$ TOP={real.parent.parent}' >&2\n")
    assert [found(tmp_path), found(tmp_path)] == [real, real]
    assert log.read_text() == "asked\n"


def test_a_wrapper_that_leads_nowhere_is_an_error(host, tmp_path):
    host("bin/nvcc", "#!/bin/sh\nexit 1\n")
    with pytest.raises(errors.ToolchainError, match="OPF-J012"):
        found(tmp_path)


def test_identity_is_content_not_path_and_is_remembered(host, tmp_path):
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


def test_an_exchanged_compiler_changes_the_identity(host, tmp_path):
    nvcc, memo = host("kit/bin/nvcc"), tmp_path / "memo.json"
    host("kit/include/cuda.h")
    host("kit/include/cuda_runtime.h")
    before = toolchain.Toolchain(nvcc, tmp_path / "bin/c++", memo).identity
    stat = nvcc.stat()
    nvcc.write_text("\x7fELG")  # same size
    os.utime(nvcc, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert toolchain.Toolchain(nvcc, tmp_path / "bin/c++", memo).identity != before


def test_a_damaged_memo_is_made_anew(host, tmp_path):
    host("local/bin/nvcc")
    (tmp_path / "memo.json").write_text("[1, {")
    assert found(tmp_path).is_file()
