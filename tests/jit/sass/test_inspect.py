"""A strict build refuses spills, stack frames and serialised wgmma; every build refuses wrong code."""

import json
from pathlib import Path

import pytest

from opfacade import errors, jit
from opfacade.jit import JitSpec, toolchain
from opfacade.jit import sass as inspect
from opfacade.jit.sass import hazards as sass
from tests.jit.slow_sources import SPILLS, STACK

LOG = """\
ptxas info    : Compiling entry function 'attend' for 'sm_90a'
ptxas info    : Function properties for attend
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 255 registers
"""
SERIALIZED = (
    "ptxas info    : (C7511) Potential Performance Loss: wgmma is serialized due to X in the function 'attend' in line 85"
)


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    """A machine with a GPU builds with its own compilers."""
    monkeypatch.setenv("OPFACADE_JIT_STRICT", "1")


def found(log):
    return [(finding.name, finding.kernel) for finding in inspect.ptxas_findings(log)]


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [((0, 0, 0), []), ((16, 8, 12), [("spills", "attend")]), ((16, 0, 0), [("local-memory", "attend")])],
)
def test_spills_and_stack_are_read_from_the_output_of_ptxas(numbers, wanted):
    assert found(LOG.format(stack=numbers[0], stores=numbers[1], loads=numbers[2])) == wanted


def test_serialised_wgmma_is_read_from_the_output_of_ptxas():
    (finding,) = inspect.ptxas_findings(SERIALIZED)
    assert str(finding) == "attend: C7511: Potential Performance Loss: wgmma is serialized due to X"


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("", set()),
        ("// allows: local-memory\n", {"local-memory"}),
        ("x\n  // allows: spills, wgmma-serialization\n", {"spills", "local-memory", "wgmma-serialization"}),
    ],
)
def test_allowances_are_read_from_a_source(source, wanted):
    assert inspect.allowances(source) == wanted


def test_an_unknown_allowance_is_an_error():
    with pytest.raises(errors.CompileError, match=r"expected spills, local-memory, wgmma-serialization, got 'spill'"):
        inspect.allowances("// allows: spill\n")


@pytest.mark.parametrize(
    ("source", "name", "words"), [(SPILLS, "spills", "spills registers"), (STACK, "local-memory", "stack")]
)
def test_a_kernel_with_spills_or_a_stack_is_refused_unless_its_source_allows_them(tiny, root, source, name, words):
    place = root / "csrc/testing/tiny.cu.jinja"
    place.write_text(source)
    with pytest.raises(errors.CompileError, match=r"OPF-J033") as caught:
        jit.build(tiny)
    assert f"tiny: kernel tiny: {'uses a ' if name == 'local-memory' else ''}{words}" in str(caught.value)
    assert "stack frame" in Path(caught.value.log_path).read_text()
    place.write_text(f"// allows: {name}\n{source}")
    assert jit.build(tiny).is_file()


def test_a_debug_build_may_spill(tiny, root, monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_DEBUG", "1")
    (root / "csrc/testing/tiny.cu.jinja").write_text(STACK)
    assert jit.build(tiny).is_file()


def wgmma(**facts):
    return JitSpec.of("wgmma", "testing/wgmma", "sm_90a", **({"steps": 4, "serialized": False, "allows": False} | facts))


@pytest.mark.parametrize("steps", [4, 1000])
def test_a_wgmma_kernel_is_judged_without_a_disassembler(root, cache_dir, steps, monkeypatch):
    monkeypatch.setattr(inspect, "disassembly", None)
    facts = json.loads((jit.build(wgmma(steps=steps)).parent / "meta.json").read_text())
    assert facts["sass"] == "clean"


@pytest.mark.parametrize("there", [True, False])
def test_a_kernel_with_unknown_instruction_words_is_disassembled(root, cache_dir, monkeypatch, there):
    monkeypatch.setattr(inspect.sass_words, "listing", unknown)
    monkeypatch.setattr(inspect, "disassembly", lambda cubin, tools: "        /*0000*/  EXIT ;" if there else "")
    facts = json.loads((jit.build(wgmma()).parent / "meta.json").read_text())
    assert facts["sass"] == ("clean" if there else "no disassembler")


def test_a_killed_disassembler_is_an_error(root, cache_dir, monkeypatch, tmp_path):
    program = tmp_path / "nvdisasm"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(inspect.sass_words, "listing", unknown)
    monkeypatch.setattr(inspect, "find_disassembler", lambda tools: program)
    with pytest.raises(errors.CompileError, match=r"nvdisasm cannot disassemble .* \[OPF-J034\]"):
        jit.build(wgmma())


def unknown(cubin):
    raise inspect.sass_words.UnknownCodeError("all of it")


def test_serialised_wgmma_is_refused_unless_the_source_allows_it(root, cache_dir):
    with pytest.raises(errors.CompileError, match=r"wgmma: kernel wgmma: C75\d\d: .*serialized"):
        jit.build(wgmma(serialized=True))
    assert jit.build(wgmma(serialized=True, allows=True)).is_file()


def test_wrong_code_of_the_assembler_is_refused_regardless_of_allowances(root, cache_dir, monkeypatch):
    listing = """
        Function : wgmma
        /*0000*/  HGMMA.64x8x16.F32.BF16 R24, R4, gdesc[UR4], R24, gsb0 ;
        /*0010*/  MOV R5, R9 ;
        /*0020*/  EXIT ;
"""
    monkeypatch.setattr(inspect, "is_doubtful", lambda cubin: True)
    monkeypatch.setattr(inspect, "disassembly", lambda cubin, tools: listing)
    with pytest.raises(errors.CompileError, match=r"OPF-J034") as caught:
        jit.build(wgmma(allows=True))
    assert "wgmma at 0x0010: `MOV R5, R9` overwrites R5, read by the wgmma at 0x0000" in str(caught.value)


@pytest.mark.parametrize("program", ["nvdisasm", "cuobjdump"])
def test_the_output_of_each_disassembler_is_parsed(root, cache_dir, program):
    """If nvcc is installed, the check finds the instructions that the source requests."""
    tools = toolchain.find(cache_dir / "v1/toolchain.json")
    place = toolchain.find_disassembler(tools)
    if place is None or not (place.parent / program).is_file():
        pytest.skip(f"no {program}")
    patched = pytest.MonkeyPatch()
    patched.setattr(inspect, "find_disassembler", lambda tools: place.parent / program)
    text = inspect.disassembly(jit.build(wgmma()).parent / "kernel.cubin", tools)
    patched.undo()
    assert sass.uses_wgmma(text)
    assert list(sass.functions(text)) == ["wgmma"]
    assert sass.lint(text) == ()
