"""A library of emulated kernels is compiled once for all users of the same text, and again if the text or a header differs."""

import ctypes
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from opfacade.jit import toolchain
from opfacade.plans.quantize import QuantizeDescriptor
from opfacade.testing import inputs
from tests import emulator
from tests.emulator import builds

pytestmark = emulator.needed
TEXT = '#include "value.h"\nextern "C" int value() { return VALUE; }\n'


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Builds into an empty directory; `compiled.ran` lists the sources that were compiled."""
    ran, run = [], subprocess.run

    def told(words, **facts):
        if "-shared" in words:
            ran.append(words)
        return run(words, **facts)

    def runtime(value):
        """Replaces the runtime with which libraries are linked by a small one that compiles quickly."""
        builds.runtime.cache_clear()
        path = tmp_path / "first/tests/emulator/runtime.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'extern "C" int linked() {{ return {value}; }}\n')

    def library(value, text=TEXT):
        folder = tmp_path / f"include-{value}"
        folder.mkdir(exist_ok=True)
        (folder / "value.h").write_text(f"#define VALUE {value}\n")
        includes = ("-I", str(folder), "-I", str(tmp_path / "first"), "-I", str(builds.ROOT))
        return builds.whole(emulator.compiler(), (text, "// a binding\n"), includes, ())

    (tmp_path / "place").mkdir()
    monkeypatch.setattr(builds, "place", lambda: tmp_path / "place")
    monkeypatch.setattr(builds, "header", lambda words: tmp_path)
    monkeypatch.setattr(builds, "RUNTIME", "tests/emulator/runtime.h")
    runtime(7)
    monkeypatch.setattr(builds.subprocess, "run", told)
    library.ran, library.runtime = ran, runtime
    return library


def test_the_same_text_is_compiled_once(compiled):
    assert compiled(1) == compiled(1)
    assert len(compiled.ran) == 1
    assert ctypes.CDLL(str(compiled(1))).value() == 1


def test_a_changed_header_gives_another_library(compiled):
    one, two = compiled(1), compiled(2)
    assert [ctypes.CDLL(str(path)).value() for path in (one, two)] == [1, 2]
    assert len(compiled.ran) == 2


def test_a_changed_runtime_gives_another_library(compiled):
    one = compiled(1)
    compiled.runtime(8)
    two = compiled(1)
    assert [ctypes.CDLL(str(path)).linked() for path in (one, two)] == [7, 8]


def test_a_changed_nested_header_gives_another_library(compiled, tmp_path):
    text = '#include "outer.h"\nextern "C" int value() { return INNER; }\n'
    folder = tmp_path / "include-1"
    folder.mkdir()
    (folder / "outer.h").write_text('#if 1\n#  include "inner.h"\n#endif\n')
    found = []
    for inner in (5, 66):
        (folder / "inner.h").write_text(f"#define INNER {inner}\n")
        found.append(ctypes.CDLL(str(compiled(1, text))).value())
    assert found == [5, 66]


KERNELS = """
extern "C" __global__ void rows_{0}(int) {{}}
extern "C" __global__ void rows_{1}(int) {{}}
extern "C" __global__ void rows_{2}(int) {{}}
extern "C" __global__ void merge(int) {{}}
"""
BINDING = """#include "csrc/common/launch.h"
extern "C" int take(const char* name) {
  try {
    return opfacade::found(name).kernel != nullptr;
  } catch (const opfacade::FfiError& error) {
    return strcmp(error.kind(), "EmulatorRefused") == 0 ? 3 : 2;
  }
}
"""


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """launched(a text of kernels) returns their library, and the number of kernels in each library that was compiled for it."""
    monkeypatch.setattr(builds, "place", lambda: tmp_path)
    monkeypatch.setattr(builds, "header", lambda words: tmp_path)
    held, link = [], builds._link

    def linked(compiler, made, *parts):
        link(compiler, made, *parts)
        held.append(made.with_name("device.cc").read_text().count("kept_") if made.with_name("device.cc").exists() else 0)

    monkeypatch.setattr(builds, "_link", linked)
    system, library = toolchain.tvm_ffi_paths()
    includes = [str(builds.ROOT / "tests/emulator"), str(builds.ROOT), *map(str, system)]
    names = "".join(f'OPF_KERNEL({name}, "{name}");\n' for name in ("rows_any", "rows_wide", "rows_dense", "merge"))

    def library_of(text):
        texts = (text, f"{BINDING}{names}")
        path = builds.library(
            emulator.compiler(), texts, [w for path in includes for w in ("-I", path)], (str(library), "-ldl")
        )
        return ctypes.CDLL(str(path)), held

    return library_of


def test_a_launch_compiles_the_kernel_and_the_kernels_of_the_same_layout(launched):
    library, held = launched(KERNELS.format("any", "wide", "dense"))
    assert held == [0]
    assert library.take(b"rows_wide") == 1
    assert held == [0, 2], "rows_wide and merge"
    assert library.take(b"merge") == library.take(b"rows_wide") == 1
    assert held == [0, 2]
    assert library.take(b"rows_any") == library.take(b"rows_dense") == 1
    assert held == [0, 2, 2]


def test_a_kernel_that_does_not_compile_is_refused(launched):
    library, _ = launched(KERNELS.format("any", "wide", "dense") + "no such words;\n")
    assert library.take(b"rows_wide") == 3


def test_a_launch_of_a_kernel_that_does_not_compile_raises_compile_error():
    problem = QuantizeDescriptor(total_num_rows=3, hidden=128, dtype="f32")
    broken = emulator.edited("kernels/reduction/fold.cuh", ("M::put(out, i, one", "M::no_such_name(out, i, one"))
    with broken, pytest.raises(builds.CompileError, match="no_such_name"):
        emulator.subject(problem).run(inputs.make_args(problem, 1))


def test_an_edited_header_precedes_the_precompiled_one(tmp_path, monkeypatch):
    monkeypatch.setattr(builds, "place", lambda: tmp_path)
    monkeypatch.setattr(builds, "header", builds.header.__wrapped__)
    edited = tmp_path / "first" / builds.HEADER
    edited.parent.mkdir(parents=True)
    edited.write_text((builds.ROOT / builds.HEADER).read_text() + "#define EDITED 3\n")
    text = 'extern "C" int value() { return EDITED; }\n'
    path = builds.whole(emulator.compiler(), (text, ""), ("-I", str(tmp_path / "first"), "-I", str(builds.ROOT)), ())
    assert ctypes.CDLL(str(path)).value() == 3


def test_a_header_in_the_working_directory_is_not_taken(compiled, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/value.h").write_text("#define VALUE 7\n")
    monkeypatch.chdir(tmp_path / "here")
    one, two = compiled(1), compiled(2)
    assert [ctypes.CDLL(str(path)).value() for path in (one, two)] == [1, 2]


def test_concurrent_builds_of_one_text_wait_for_the_first(compiled):
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(compiled, [3] * 4))) == 1
    assert len(compiled.ran) == 1


def test_a_text_that_does_not_compile_raises_and_leaves_no_library(compiled):
    with pytest.raises(builds.CompileError, match="no_such_name"):
        compiled(1, "int value() { return no_such_name; }")
    assert not list(builds.place().glob("*.so"))


def test_a_directory_that_other_users_can_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(builds.tempfile, "tempdir", str(tmp_path))
    builds.place.cache_clear()
    try:
        first = builds.place()
        assert first.parent == tmp_path
        assert first.stat().st_mode & 0o777 == 0o700
        first.chmod(0o777)
        builds.place.cache_clear()
        assert builds.place() != first
    finally:
        builds.place.cache_clear()


def test_the_header_is_precompiled(tmp_path, monkeypatch):
    monkeypatch.setattr(builds, "place", lambda: tmp_path)
    words = (emulator.compiler(), *builds.FLAGS, *builds.OPTIMISED)
    folder = builds.header.__wrapped__(words)
    assert (folder / f"{builds.HEADER}.gch").stat().st_size > 0
    words = [*words, "-H", "-I", str(folder), "-I", str(builds.ROOT), "-fsyntax-only"]
    text = f'#include "{builds.HEADER}"\nint here;\n#include "{builds.HEADER}"\n'
    done = subprocess.run([*words, "-x", "c++", "-"], cwd=tmp_path, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"! {folder}"), done.stderr
