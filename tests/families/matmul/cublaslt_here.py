"""A cuBLASLt for tests without a GPU: `fake_cublaslt.cc`, compiled once per run, replaces torch's copy."""

import ctypes
import subprocess
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

from opfacade.backends.library import cublaslt_library as cublaslt
from opfacade.backends.library import matmul as backend
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections

VERSION = "13.1.0.3"
STREAM = 77
_SOURCE = Path(__file__).parent / "fake_cublaslt.cc"


@cache
def opened():
    """The fake as a loaded library, with its own functions fake_log, fake_reset and fake_live."""
    made = Path(mkdtemp(prefix="fake_cublaslt")) / "fake.so"
    words = ["c++", "-O1", "-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(made), str(_SOURCE)]
    subprocess.run(words, check=True, timeout=120)
    found = ctypes.CDLL(str(made))
    found.fake_log.restype = ctypes.c_char_p
    return found


def log():
    return opened().fake_log().decode().splitlines()


@contextmanager
def installed(version=VERSION):
    """Pretends that the package of this version is installed; None: none is."""
    _forget()
    with patch.object(cublaslt, "installed", lambda: version):
        yield
    _forget()


def _forget():
    """Forget selections, which contain the version."""
    forget_specializations()
    forget_selections()


@contextmanager
def here(respects=True):
    """Products run on the host in the fake library. respects: whether its heuristics follow the preference."""
    opened().fake_reset(respects)
    library = cublaslt.Library(opened())
    loaded = patch.object(cublaslt, "load", lambda version: library)
    with installed(), loaded, patch.object(backend, "stream_of", lambda device: STREAM):
        yield
