"""A key depends on everything that determines a binary, and on nothing else."""

import os
import random
import subprocess

import pytest

from opfacade import jit
from opfacade.jit import JitSpec, cache, codegen, identity, toolchain
from tests.jit.conftest import TINY


def touch_back(path):
    """Sets an old modification time, as an archive or a wrong clock may do."""
    os.utime(path, (981_173_106, 981_173_106))


@pytest.mark.parametrize("path", ["csrc/testing/tiny.cc.jinja", "kernels/testing/scale_params.h"])
def test_an_edit_with_an_older_time_is_built(toolkit, root, path):
    first = jit.build(TINY)
    place = root / path
    place.write_text(place.read_text() + "// edited\n")
    touch_back(place)
    second = jit.build(TINY)
    assert second.parent != first.parent
    assert len(toolkit.calls()) == 2


def test_a_compiler_exchanged_at_its_path_is_seen(toolkit):
    before = jit.key(TINY)
    content = toolkit.nvcc.read_bytes()
    toolkit.nvcc.unlink()
    toolkit.nvcc.write_bytes(content + b"v2")
    toolkit.nvcc.chmod(0o755)
    assert jit.key(TINY) != before


@pytest.mark.parametrize("label", ["nvcc", "cicc", "ptxas", "cudafe++", "c++", "cuda.h"])
def test_every_program_of_the_compiler_is_in_the_key(toolkit, label, monkeypatch):
    before = jit.key(TINY)
    identity = {**toolchain.find(cache.toolchain_memo()).identity, label: "another"}
    monkeypatch.setattr(toolchain.Toolchain, "identity", identity)
    assert jit.key(TINY) != before


@pytest.mark.parametrize("name", ["tvm_ffi", "cxx11_abi", "machine", "os"])
def test_the_version_of_every_abi_is_in_the_key(toolkit, name, monkeypatch):
    before, own = jit.key(TINY), identity.abi()
    monkeypatch.setattr(identity, "abi", lambda: {**own, name: "9.9.9"})
    assert jit.key(TINY) != before


@pytest.mark.parametrize("variable", ["NVCC_FLAGS", "CXX_FLAGS", "LINK_FLAGS"])
def test_the_build_recipe_is_in_the_key(toolkit, variable, monkeypatch):
    before = jit.key(TINY)
    monkeypatch.setattr(identity.build, variable, (*getattr(identity.build, variable), "-g"))
    assert jit.key(TINY) != before


def test_the_path_of_a_compiler_is_not_in_the_key(toolkit, monkeypatch, tmp_path):
    before = jit.key(TINY)
    (tmp_path / "link").symlink_to(toolkit.home)
    monkeypatch.setenv("OPFACADE_NVCC", str(tmp_path / "link/bin/nvcc"))
    assert jit.key(TINY) == before
    toolkit.home.rename(tmp_path / "elsewhere")
    monkeypatch.setenv("OPFACADE_NVCC", str(tmp_path / "elsewhere/bin/nvcc"))
    assert jit.key(TINY) == before
    touch_back(tmp_path / "elsewhere/bin/nvcc")
    assert jit.key(TINY) == before


def test_environment_variables_of_the_user_are_not_in_the_key(toolkit, monkeypatch, tmp_path):
    before = jit.key(TINY)
    for name in ("NVCC_APPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "HOSTNAME", "USER", "LANG"):
        monkeypatch.setenv(name, "/somewhere")
    monkeypatch.chdir(tmp_path)
    assert jit.key(TINY) == before


def test_a_header_in_the_working_directory_is_not_included(built, monkeypatch, tmp_path):
    first = jit.build(built)
    (tmp_path / "here").mkdir()
    for name in ("cuda_runtime.h", "cuda.h", "stdint.h"):
        (tmp_path / "here" / name).write_text("#error taken from the working directory\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("CPATH", str(tmp_path / "here"))
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "second"))
    assert jit.build(built).read_bytes() == first.read_bytes()


def test_a_library_links_neither_the_cuda_runtime_nor_the_driver(built):
    dynamic = subprocess.run(["readelf", "-d", jit.build(built)], capture_output=True, text=True, check=True).stdout
    needed = [line for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert needed
    assert not any("libcuda" in line or "libnv" in line for line in needed)
    assert "RUNPATH" not in dynamic


def test_two_kernels_with_one_name_have_separate_entries(toolkit):
    one, two = TINY, JitSpec.of("tiny", "testing/tiny", "sm_80", value=43)
    assert jit.load(one) is not jit.load(two)
    assert jit.build(one).read_bytes() != jit.build(two).read_bytes()


def test_a_rebuilt_library_with_other_code_has_another_path(toolkit, root):
    """dlopen returns the library that it has opened before under the same path."""
    first = jit.build(TINY)
    (root / "csrc/testing/tiny.cc.jinja").write_text('extern "C" int answer() { return 1; }\n')
    assert jit.build(TINY).name != first.name


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.heavy)])
def test_different_inputs_have_different_digests(count):
    rng = random.Random(0)
    words = ["", "a", "ab", "b", "-DA=", "-DB", "-DA=str-DB", '"', "\\", "[", ",", "0", "é", "\n"]
    seen = {}
    for _ in range(count):
        flags = [rng.choice(words) for _ in range(rng.randrange(4))]
        fields = {
            "flags": flags,
            "name": rng.choice(words) + str(rng.randrange(999)),
            "arch": rng.choice(words),
            "n": rng.choice([1, "1", True, 1.0]),
        }
        text = repr(sorted(fields.items()))
        digest = codegen.canonical_digest(fields)
        assert seen.setdefault(digest, hash(text)) == hash(text)


def test_moving_a_character_between_fields_changes_the_digest():
    digest = codegen.canonical_digest
    assert digest({"flags": ["-DA=", "-DB"]}) != digest({"flags": ["-DA=str-DB"]})
    assert digest({"a": "xy", "b": "z"}) != digest({"a": "x", "b": "yz"})
    assert digest({"a": ["b"]}) != digest({"a": "b"})


@pytest.mark.parametrize("name", ["a b", "a:b", "é", "x" * 120, "a'b", "a$c", "#x", "a=b,c"])
def test_the_cache_directory_may_have_any_name(toolkit, monkeypatch, tmp_path, name):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / name / "cache"))
    assert jit.build(TINY).is_relative_to(tmp_path / name)
    jit.load(TINY)


@pytest.mark.parametrize(
    ("built", "here", "fits"),
    [
        ("0.1.15", "0.1.15", True), ("0.1.12", "0.1.15.post2", True), ("0.1.16", "0.1.15", False), ("0.2.0", "0.1.15", False),
        ("", "0.1.15", False), ("garbage", "0.1.15", False), (None, "0.1.15", False),
    ],
)  # fmt: skip
def test_a_binary_is_used_with_the_same_or_a_newer_tvm_ffi(monkeypatch, built, here, fits):
    own = {**identity.abi(), "tvm_ffi": here}
    monkeypatch.setattr(identity, "abi", lambda: own)
    assert identity.fits({"abi": {**own, "tvm_ffi": built}}) is fits
    assert identity.fits({"abi": {**own, "machine": "sparc"}}) is False
    assert identity.fits({}) is False
