"""Each input of a build changes the key, and changes each digest that includes the input. The tests run no compiler."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

import opfacade
from opfacade.jit import JitSpec, codegen, identity, reload, toolchain
from opfacade.jit.codegen import Sources

SPEC = JitSpec.of("name", "a/template", "sm_90a", ("-DX",), value=1)
SOURCES = Sources("device", "binding", (("kernels/a.h", b"one"), ("kernels/b.h", b"two")))
TOOLS = SimpleNamespace(identity={"nvcc": "1", "c++": "2"})
CHANGES = {
    "flags": {"spec": replace(SPEC, flags=("-DY",))},
    "order of flags": {"spec": replace(SPEC, flags=("-DX", "-DZ"))},
    "no flags": {"spec": replace(SPEC, flags=())},
    "arch": {"spec": replace(SPEC, arch="sm_90")},
    "device": {"sources": replace(SOURCES, device="other")},
    "binding": {"sources": replace(SOURCES, binding="other")},
    "a header": {"sources": replace(SOURCES, headers=(SOURCES.headers[0], ("kernels/b.h", b"new")))},
    "the name of a header": {"sources": replace(SOURCES, headers=(SOURCES.headers[0], ("kernels/c.h", b"two")))},
    "one header less": {"sources": replace(SOURCES, headers=SOURCES.headers[:1])},
    "name": {"spec": replace(SPEC, name="other")},
    "compiler": {"tools": SimpleNamespace(identity={"nvcc": "1", "c++": "3"})},
    "a program more": {"tools": SimpleNamespace(identity={"nvcc": "1", "c++": "2", "ptxas": "1"})},
}


def key(spec=SPEC, sources=SOURCES, tools=TOOLS):
    return identity.key(spec, sources, tools)


def portable(spec=SPEC, sources=SOURCES, tools=TOOLS):
    return identity.portable(spec, sources)


def digest(spec=SPEC, sources=SOURCES, tools=TOOLS):
    return codegen.source_digest(spec, sources)


@pytest.mark.parametrize("change", CHANGES)
def test_every_input_changes_the_key(change):
    assert key() == key(replace(SPEC), replace(SOURCES), SimpleNamespace(identity=dict(TOOLS.identity)))
    assert key(**CHANGES[change]) != key()


@pytest.mark.parametrize("change", CHANGES)
def test_each_digest_changes_with_exactly_its_inputs(change):
    ours = "compiler" not in change and "program" not in change
    assert (portable(**CHANGES[change]) != portable()) == ours
    assert (digest(**CHANGES[change]) != digest()) == (ours and change != "name")


def test_every_change_gives_another_key():
    keys = [key(**change) for change in CHANGES.values()]
    assert len({*keys, key()}) == len(CHANGES) + 1


def test_the_version_of_the_library_is_in_the_key(monkeypatch):
    before = key()
    monkeypatch.setattr(opfacade, "__version__", "9.9.9")
    assert key() != before


@pytest.mark.parametrize("name", ["cxx11_abi", "machine", "os"])
def test_process_wide_properties_are_in_both_digests(monkeypatch, name):
    before, own = (key(), portable()), identity.abi()
    monkeypatch.setattr(identity, "abi", lambda: {**own, name: "other"})
    assert key() != before[0]
    assert portable() != before[1]
    assert not identity.fits({"abi": own})


@pytest.mark.parametrize("name", ["NVCC_FLAGS", "LEAN_FLAGS", "CXX_FLAGS", "LINK_FLAGS"])
def test_the_build_recipe_is_in_both_digests(monkeypatch, name):
    before = key(), portable()
    monkeypatch.setattr(identity.build, name, (*getattr(identity.build, name), "-g"))
    assert key() != before[0]
    assert portable() != before[1]


@pytest.mark.parametrize("name", ["device", "host"])
def test_the_options_of_each_compiler_are_in_every_digest(monkeypatch, name):
    before = key(), portable(), digest()
    monkeypatch.setattr(identity.options, name, lambda: ("-g",))
    assert all(now != then for now, then in zip((key(), portable(), digest()), before, strict=True))


def test_specs_differ_in_each_of_their_fields():
    others = [
        SPEC, replace(SPEC, name="other"), replace(SPEC, template="b"), replace(SPEC, arch="sm_90"), replace(SPEC, flags=()),
        *(replace(SPEC, params=(("value", value),)) for value in (2, True, 1.0)),
    ]  # fmt: skip
    assert len(set(others)) == len({spec.identity for spec in others}) == len(others)
    assert replace(SPEC) == SPEC


def test_a_compiler_of_the_same_size_with_another_time_is_read_again(tmp_path):
    program, memo = tmp_path / "nvcc", tmp_path / "memo.json"
    program.write_bytes(b"one")
    found = []
    for content in (b"one", b"two"):
        program.write_bytes(content)  # the same inode
        os.utime(program, ns=(0, len(found) + 1))
        facts = toolchain._Memo(memo)
        found.append(facts.facts(program)["sha256"])
        facts.save()
    assert found[0] != found[1]
    assert toolchain._Memo(memo).facts(program)["sha256"] == found[1]


PROGRAMS = {
    "nvcc": "bin/nvcc", "cicc": "nvvm/bin/cicc", "ptxas": "bin/ptxas", "cudafe++": "bin/cudafe++", "cuda.h": "include/cuda.h",
    "c++": "g++",
}  # fmt: skip


@pytest.fixture
def home(tmp_path):
    for path in (*PROGRAMS.values(), "include/cuda_runtime.h"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


def identity_of(home):
    return toolchain.Toolchain(home / "bin/nvcc", home / "g++", home / "memo.json").identity


@pytest.mark.parametrize("label", PROGRAMS)
def test_every_program_of_a_toolkit_is_in_its_identity(home, label):
    before = identity_of(home)
    assert set(before) == set(PROGRAMS)
    (home / PROGRAMS[label]).write_text("another release")
    after = identity_of(home)
    assert {name for name in PROGRAMS if before[name] != after[name]} == {label}


def test_the_signature_of_sources_follows_each_stamp(tmp_path, monkeypatch):
    path = tmp_path / "csrc" / "a.h"
    path.parent.mkdir()
    path.write_text("one")
    monkeypatch.setattr(reload, "source_root", lambda: tmp_path)
    found = [reload.signature()]
    os.utime(path, ns=(0, 5))
    found.append(reload.signature())
    path.write_text("longer")
    os.utime(path, ns=(0, 5))
    found.append(reload.signature())
    assert len(set(found)) == 3
    assert reload.signature() == found[-1]
