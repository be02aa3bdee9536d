"""Libraries of emulated kernels, each compiled once per machine and stored under the digest of everything that the compiler
reads.

The workers of a run share them, and so do later runs, until a library is unused for some days. Common headers are precompiled
once, and so is RUNTIME, which runs the threads and is linked with each library. A binding is a separate library; its kernels
are in others, which are compiled at their first launch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.emulator import headers, lazy

ROOT = Path(__file__).resolve().parents[2]
HEADER = "tests/emulator/simt.h"
RUNTIME = "tests/emulator/simt.cc"
KEPT_SECONDS = 3 * 86400
# With fortification, longjmp refuses to switch stacks.
FLAGS = ("-std=c++17", "-fPIC", "-w", "-Wno-psabi", "-fno-gnu-unique", "-U_FORTIFY_SOURCE")
# Most kernels run for less time than -O1 takes to compile them; without these passes, compilation takes a fifth less time.
OPTIMISED = (
    "-O1",
    *(f"-fno-{name}" for name in ("tree-loop-optimize", "tree-pta", "tree-dominator-opts", "tree-ch", "ipa-modref")),
    *(f"-fno-{name}" for name in ("ipa-pure-const", "ipa-reference", "ipa-profile", "guess-branch-probability")),
)
# These options make the compiler report each memory access (order.h).
WATCHED = ("-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0")
# Suffixes of kernels that do the same for rows or tensors of another layout. A launch uses one of them.
WAYS = ("any", "anywhere", "apart", "dense", "flat", "many", "near", "rows", "strided", "tile", "wide")
KERNEL = re.compile(r'OPF_KERNEL\(\w+, "(\w+)"\)')


CompileError = lazy.CompileError


@cache
def place() -> Path:
    """A directory that only this user can write; files unused for days are removed."""
    found = Path(tempfile.gettempdir()) / f"opfacade-emulated-{os.getuid()}"
    found.mkdir(mode=0o700, exist_ok=True)
    facts = found.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        return Path(tempfile.mkdtemp(prefix="opfacade-emulated-"))
    for path in found.iterdir():
        with suppress(FileNotFoundError):  # other processes may remove files meanwhile
            if path.lstat().st_mtime < time.time() - KEPT_SECONDS and path.is_file():
                path.unlink()
    return found


@dataclass(frozen=True)
class Text:
    """A C++ source text with HEADER before it, and the options with which it is compiled."""

    text: str
    words: tuple[str, ...]
    includes: tuple[str, ...]

    @classmethod
    def of(cls, compiler: str, text: str, includes: Sequence[str], *flags: str) -> Text:
        return cls(f'#include "{HEADER}"\n{text}', (compiler, *FLAGS, *flags), tuple(includes))

    @property
    def key(self) -> str:
        return _digest((_version(self.words[0]), *self.words, headers.digest(self.text, self.includes[1::2])))

    def compiled(self, into: Path, kernels: Sequence[str] = ()) -> Path:
        """An object file with only these kernels."""
        kept = "".join(f"\n__attribute__((used)) static auto* const kept_{name} = &{name};" for name in kernels)
        source = into.with_suffix(".cc")
        source.write_text(f"{self.text}{kept}\n")
        _run([*self.words, *_with_header(self.words, self.includes), "-c", "-o", str(into), str(source)])
        return into


def whole(compiler: str, texts: Sequence[str], includes: Sequence[str], links: Sequence[str]) -> Path:
    """A library of all kernels and their binding, from two texts. CompileError contains the compiler's output."""
    device, binding, run = *_texts(compiler, texts, includes), runtime(compiler, tuple(includes))

    def make(work: Path, made: Path) -> None:
        objects = device.compiled(work / "device.o", _kernels(binding)), binding.compiled(work / "binding.o")
        _link(compiler, made, *objects, run, *links)

    return _once(_digest((run.stem, device.key, binding.key)), make)


def library(compiler: str, texts: Sequence[str], includes: Sequence[str], links: Sequence[str]) -> Path:
    """A library of the binding only. Its kernels are compiled at their first launch in this process."""
    device, binding = _texts(compiler, texts, includes)
    key, where = device.key, dict[str, Path]()

    def find(name: str) -> Path:
        """Builds two libraries: the first contains the kernels of this layout and the kernels without a layout suffix, the
        second all others."""
        if name not in where:
            names = [one for one in _kernels(binding) if one not in where and (where or _way(one) in ("", _way(name)))]
            run = runtime(compiler, tuple(includes))

            def make(work: Path, made: Path) -> None:
                _link(compiler, made, device.compiled(work / "device.o", names), run, *links)

            where.update(dict.fromkeys([*names, name], _once(_digest((run.stem, key, *names)), make)))
        return where[name]

    def make(work: Path, made: Path) -> None:
        _link(compiler, made, binding.compiled(work / "binding.o"), *links)

    made = _once(_digest(("binding", key, binding.key)), make)
    lazy.serve(made, find)
    return made


def _texts(compiler: str, texts: Sequence[str], includes: Sequence[str]) -> tuple[Text, Text]:
    """The device code and the binding, which runs once per launch and so is not optimised."""
    device, binding = texts
    return Text.of(compiler, device, includes, *OPTIMISED), Text.of(compiler, binding, includes, "-O0")


def _kernels(binding: Text) -> list[str]:
    return KERNEL.findall(binding.text)


def _way(name: str) -> str:
    last = name.rpartition("_")[2]
    return last if last in WAYS else ""


def _link(compiler: str, made: Path, *parts: Path | str) -> None:
    """Links without a library that the binding libraries load already, because searching this library takes as long as
    everything else."""
    _run([compiler, *FLAGS, *_linker(), "-nodefaultlibs", "-shared", "-o", str(made), *map(str, parts)])


@cache
def _linker() -> tuple[str, ...]:
    """The option for a linker that takes half of the time, if it is installed."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


def _once(key: str, make: Callable[[Path, Path], None]) -> Path:
    """The library with this key; make(directory, path) creates it if it does not exist."""
    found = place() / f"{key}.so"
    with _alone(key):
        if found.exists():
            os.utime(found)
            return found
        with tempfile.TemporaryDirectory(dir=place()) as work:
            made = Path(work, "emulated.so")
            make(Path(work), made)
            made.replace(found)
    return found


@cache
def runtime(compiler: str, includes: tuple[str, ...]) -> Path:
    """RUNTIME as an object file, with the headers of `includes`."""
    text, words = f'#include "{RUNTIME}"\n', (compiler, *FLAGS, "-O1")
    key = _digest((_version(compiler), *words, headers.digest(text, includes[1::2])))
    made = place() / f"{key}.o"
    with _alone(key):
        if made.exists():
            os.utime(made)
        else:
            half = made.with_suffix(".half")
            _run([*words, *includes, "-c", "-x", "c++", "-", "-o", str(half)], text)
            half.replace(made)
    return made


def _with_header(words: Sequence[str], includes: Sequence[str]) -> list[str]:
    """Places the precompiled header at the position of ROOT's header, after an edited header that precedes it."""
    at = includes.index(str(ROOT)) - 1
    return [*includes[:at], "-I", str(header(tuple(words))), *includes[at:]]


@cache
def header(words: tuple[str, ...]) -> Path:
    """A directory with the compiled HEADER, to be searched before ROOT; a plain header if it is not usable."""
    text = f'#include "{HEADER}"\n'
    key = _digest((_version(words[0]), *words, headers.digest(text, (str(ROOT),))))
    folder = place() / f"header-{key}"
    made = folder / f"{HEADER}.gch"
    with _alone(key):
        if not made.exists():
            made.parent.mkdir(parents=True, exist_ok=True)
            # so that a source that includes the header again finds it at the same path
            plain = Path(shutil.copy(ROOT / HEADER, folder / HEADER))
            half = made.with_suffix(".half")
            _run([*words, f"-I{ROOT}", "-x", "c++-header", str(plain), "-o", str(half)])
            half.replace(made)
    return folder


def _digest(words: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for word in words:
        digest.update(f"{len(word)}:{word}".encode())
    return digest.hexdigest()[:32]


@cache
def _version(compiler: str) -> str:
    return _run([compiler, "--version"]).decode()


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """Lets one process at a time run, so that the second process finds the first one's result."""
    with open(place() / f"{key}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(words: Sequence[str], text: str = "") -> bytes:
    # The compiler first searches the working directory for quoted headers of a text from stdin; this directory has none.
    done = subprocess.run(words, cwd=place(), input=text.encode(), capture_output=True)
    if done.returncode:
        raise CompileError(done.stderr.decode()[:3000])
    return done.stdout
