"""Builds fake_driver.c, and reads the launches that it has recorded."""

import ctypes
import struct
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from opfacade import jit
from opfacade.jit import JitSpec, cache, toolchain


class Launched(NamedTuple):
    """The last launch of templates/csrc/testing/quick."""

    digest: int
    call: int
    launch: int
    grid: int
    block: int
    shared: int
    attributes: int


class FakeDriver:
    """The driver of this process, found by its name."""

    NAME = "opfacade_fake_driver"

    def __init__(self, place: Path) -> None:
        source, found = Path(__file__).with_name("fake_driver.c"), toolchain.find(cache.toolchain_memo())
        flags = ["-shared", "-fPIC", "-O2", f"-Wl,-soname,{self.NAME}", f"-I{found.cuda_include}"]
        library = str(place / f"{self.NAME}.so")
        subprocess.run([found.cxx, "-x", "c", *flags, "-o", library, str(source)], check=True)
        self._library = ctypes.CDLL(library)
        self._library.fake_params.restype = ctypes.c_void_p
        self._library.fake_stream.restype = ctypes.c_size_t

    def binding(self) -> object:
        """A binding that launches through this driver. The source root must have templates/csrc/testing/quick."""
        return jit.load(JitSpec.of("quick", "testing/quick", "sm_90a"))

    @property
    def launches(self) -> int:
        return int(self._library.fake_launches())

    @property
    def asked(self) -> int:
        """The number of queries for the number of resident clusters."""
        return int(self._library.fake_asked())

    def last(self) -> Launched:
        digest, call, launch, _ = struct.unpack("4Q", ctypes.string_at(self._library.fake_params(), 32))
        shape = (getattr(self._library, f"fake_{name}")() for name in ("grid", "block", "shared", "attributes"))
        return Launched(digest, call, launch, *shape)

    @property
    def stream(self) -> int:
        """The stream of the last launch."""
        return int(self._library.fake_stream())

    def fail(self, on: bool) -> None:
        self._library.fake_fail(int(on))

    def fail_after(self, launches: int) -> None:
        """One launch fails after this number of successful launches; -1 disables the failure."""
        self._library.fake_fail_after(launches)

    def during_launch(self, call: Callable[[], object]) -> None:
        """Makes a call during the next launch, as another thread could, because the launch releases the GIL."""

        def during() -> None:
            call()

        self._during = ctypes.CFUNCTYPE(None)(during)
        self._library.fake_during(self._during)


@lru_cache(maxsize=1)
def of_process() -> FakeDriver:
    """The driver that all tests of a process share, because libraries find it by its name."""
    return FakeDriver(Path(tempfile.mkdtemp()))
