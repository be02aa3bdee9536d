"""Libraries of small kernels that use one shared part of the kernels each, for tests of the parts."""

import ctypes
import os
import subprocess
from functools import cache

import torch

from tests import emulator
from tests.emulator import builds


@cache
def library(name, *flags):
    """The library of tests/emulator/<name>.cc."""
    made = builds.place() / f"pieces-{name}-{os.getpid()}.so"
    folders = (emulator.ROOT / "tests/emulator", emulator.ROOT)
    includes = [token for folder in folders for token in ("-I", str(folder))]
    runtime = str(builds.runtime(emulator.compiler(), tuple(includes)))
    source = str(emulator.ROOT / "tests/emulator" / f"{name}.cc")
    words = [emulator.compiler(), *builds.FLAGS, "-O1", *flags, "-shared", *includes, source, runtime, "-nodefaultlibs"]
    subprocess.run([*words, "-lstdc++", "-lc", "-o", str(made)], check=True, capture_output=True, timeout=120)
    return ctypes.CDLL(str(made))


def numbers(run, count, *args, dtype=torch.int32):
    """The numbers that a kernel writes. run: a library and the name of a function. Tensors in `args` are passed by address."""
    out = torch.full((count,), -1, dtype=dtype)
    given = [ctypes.c_void_p(one.data_ptr()) if isinstance(one, torch.Tensor) else one for one in args]
    assert getattr(*run)(ctypes.c_void_p(out.data_ptr()), *given), "threads wait for ever"
    return out
