"""Libraries of emulated kernels, each compiled once a machine: kept under the digest of all that the compiler reads.

Workers of one run share them, and so do runs, until nobody has used one for some days. Headers that all of them read are
precompiled once, and so is RUNTIME, which runs their threads and is linked with each of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = "tests/emulator/simt.h"
RUNTIME = "tests/emulator/simt.cc"
KEPT_SECONDS = 3 * 86400
# Fortified, longjmp refuses to change stacks.
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-w", "-Wno-psabi", "-fno-gnu-unique", "-U_FORTIFY_SOURCE")


class CompileError(Exception):
    """A compiler refused. No AssertionError, which a test that plants a fault expects of a wrong result."""


@cache
def place() -> Path:
    """A directory that nobody else can write; what has not been used for days goes."""
    found = Path(tempfile.gettempdir()) / f"opfacade-emulated-{os.getuid()}"
    found.mkdir(mode=0o700, exist_ok=True)
    facts = found.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        return Path(tempfile.mkdtemp(prefix="opfacade-emulated-"))
    for path in found.iterdir():
        with suppress(FileNotFoundError):  # other processes remove files meanwhile
            if path.lstat().st_mtime < time.time() - KEPT_SECONDS and path.is_file():
                path.unlink()
    return found


def library(compiler: str, texts: Sequence[str], includes: Sequence[str], links: Sequence[str]) -> Path:
    """The shared library of some C++ texts, each with HEADER before it. CompileError has the compiler's output."""
    texts = [f'#include "{HEADER}"\n{text}' for text in texts]
    run = runtime(compiler, tuple(includes))
    key = _key([compiler, *FLAGS, *includes], texts, run.stem)
    with _alone(key), tempfile.TemporaryDirectory(dir=place()) as work:
        found = place() / f"{key}.so"
        if found.exists():
            os.utime(found)
            return found
        sources = [Path(work, f"{number}.cc") for number in range(len(texts))]
        for source, text in zip(sources, texts, strict=True):
            source.write_text(text)
        made = Path(work, "emulated.so")
        words = [compiler, *FLAGS, *_with_header(compiler, includes), "-shared", "-o", str(made)]
        _run([*words, *map(str, sources), str(run), *links])
        made.replace(found)
    return found


@cache
def runtime(compiler: str, includes: tuple[str, ...]) -> Path:
    """RUNTIME as an object, where `includes` find it."""
    text, words = f'#include "{RUNTIME}"\n', [compiler, *FLAGS, *includes]
    key = _key(words, [text])
    made = place() / f"{key}.o"
    with _alone(key):
        if made.exists():
            os.utime(made)
        else:
            half = made.with_suffix(".half")
            _run([*words, "-c", "-x", "c++", "-", "-o", str(half)], text)
            half.replace(made)
    return made


def _with_header(compiler: str, includes: Sequence[str]) -> list[str]:
    """The kept header is found where that of ROOT would be, after an edited one that stands before it."""
    at = includes.index(str(ROOT)) - 1
    return [*includes[:at], "-I", str(header(compiler)), *includes[at:]]


@cache
def header(compiler: str) -> Path:
    """A directory with HEADER as the compiler keeps it, to be searched before ROOT; a plain one where it does not fit."""
    text = f'#include "{HEADER}"\n'
    key = _key([compiler, *FLAGS, f"-I{ROOT}"], [text])
    folder = place() / f"header-{key}"
    made = folder / f"{HEADER}.gch"
    with _alone(key):
        if not made.exists():
            made.parent.mkdir(parents=True, exist_ok=True)
            # a source that includes it again finds it at the same place
            plain = Path(shutil.copy(ROOT / HEADER, folder / HEADER))
            half = made.with_suffix(".half")
            _run([compiler, *FLAGS, f"-I{ROOT}", "-x", "c++-header", str(plain), "-o", str(half)])
            half.replace(made)
    return folder


def _key(words: Sequence[str], texts: Sequence[str], *more: str) -> str:
    digest = hashlib.sha256()
    for word in (_version(words[0]), *FLAGS, *more):  # places of headers do not matter, what they say does
        digest.update(f"{len(word)}:{word}".encode())
    for text in texts:
        digest.update(_run([*words, "-E", "-P", "-x", "c++", "-"], text))
    return digest.hexdigest()[:32]


@cache
def _version(compiler: str) -> str:
    return _run([compiler, "--version"]).decode()


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """One process at a time, so that the second finds what the first made."""
    with open(place() / f"{key}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(words: Sequence[str], text: str = "") -> bytes:
    # Quoted headers of a text from stdin are looked for in the working directory first: there are none at this place.
    done = subprocess.run(words, cwd=place(), input=text.encode(), capture_output=True)
    if done.returncode:
        raise CompileError(done.stderr.decode()[:3000])
    return done.stdout
