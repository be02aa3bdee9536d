"""If a compiler refuses generated code, the error message contains the program and not the output of the compiler."""

import shutil
import traceback
from pathlib import Path

import pytest

from opfacade import Plan, Preference, Target, errors, jit
from opfacade.core.build_errors import of_problem
from opfacade.jit.build import _REFUSED_CODE
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.expression import value
from opfacade.programs.fields import Input, Output

REPO = Path(__file__).resolve().parents[3]
X = value("x", "f32")
TWICE = MapDescriptor(
    shape=(3, 5), inputs=(Input(name="x", dtype="f32"),), outputs=(Output(name="z", dtype="f32", value=X + X),)
)


def test_the_error_contains_the_program_and_no_output_of_nvcc(tmp_path, monkeypatch):
    for folder in ("csrc", "kernels"):
        shutil.copytree(REPO / folder, tmp_path / folder)
    broken = tmp_path / "kernels/elementwise/tile.cuh"
    broken.write_text(broken.read_text().replace("kAcross = M::kTile / M::kVec", "kAcross = M::kTile / (M::kVec - M::kVec)"))
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(tmp_path))
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
    jit.forget()
    with pytest.raises(errors.CompileError) as caught:
        Plan.select(TWICE, Preference(backend="cuda"), Target.parse("sm_90a")).compile()
    jit.forget()
    error = caught.value
    seen = "".join(traceback.format_exception(error))
    assert (error.code, error.op, error.stage) == ("OPF-J035", "map", "compile")
    assert TWICE.digest()[:12] in seen
    assert TWICE.canonical_json() in seen
    assert "division by zero" in error.log_tail
    assert "division by zero" in Path(error.log_path).read_text()
    assert not [word for word in ("division", "tile.cuh", "static_assert", "nvcc -cubin", "constexpr") if word in seen]


@pytest.mark.parametrize(
    "line",
    [
        "src/kernels/elementwise/tile.cuh(55): error: division by zero",
        'map.cu(12): error: identifier "o" is undefined',
        "map.cc:1:5: error: expected ';'",
        "ptxas map.ptx, line 7; error   : Unknown symbol",
        "ptxas error   : Entry function 'k' uses too much shared data",
        "ptxas fatal   : Unresolved extern function 'f'",
    ],
)
def test_an_error_in_generated_code_is_recognised(line):
    assert _REFUSED_CODE.search(f"nvcc -cubin -O3\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "nvcc fatal   : Unsupported gpu architecture 'compute_121a'",
        "/usr/include/crt/host_config.h(167): error: unsupported GNU version!",
        'map.cu(1): catastrophic error: cannot open source file "cuda_fp8.h"',
        "map.cc:3:10: fatal error: Python.h: No such file or directory",
        "ptxas fatal   : Memory allocation failure",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "ninja: error: loading 'build.ninja'",
    ],
)
def test_an_error_of_the_machine_keeps_the_compiler_output(line):
    assert not _REFUSED_CODE.search(f"nvcc -cubin -O3\n{line}\n")
    error = errors.CompileError(line)
    with pytest.raises(errors.CompileError) as caught, of_problem(TWICE):
        raise error
    assert caught.value is error
    assert error.op == "map"
