"""Arithmetic of the kernels as a library of the host."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ("-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", f"-I{ROOT}")


def library(folder: Path, source: str) -> ctypes.CDLL:
    """`source` compiled in `folder`; a test that uses it is skipped where nothing compiles C++."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    text, found = folder / "host.cc", folder / "host.so"
    text.write_text(source)
    subprocess.run([compiler, *FLAGS, "-o", found, text], check=True)
    return ctypes.CDLL(str(found))
