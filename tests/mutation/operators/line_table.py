"""The lines of kernels/ and csrc/ that a library of the emulator has code of: its table of lines, for debuggers, says so.

Parts that `if constexpr` leaves out have no code there. The lines of a template count where the rendered source has them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("kernels/", "csrc/")
_FILE = re.compile(r"^(/\S+):$")
_ROW = re.compile(r"^\S+ +(\d+) +0x", re.MULTILINE)
_JINJA = re.compile(r"\{[{%#]")

Line = tuple[str, int]


def keep(report: Callable[[frozenset[Line]], None]) -> None:
    """From now on libraries are built with line tables, and `report` receives the lines of each library that a test uses.

    A library of kernels is built at their first launch; later tests that use its binding get its lines too.
    """
    from tests import emulator
    from tests.emulator import builds, lazy

    # A line table contains paths of its checkout, and checkouts share libraries with equal flags.
    builds.FLAGS = (*builds.FLAGS, "-g1", f"-fdebug-prefix-map={ROOT}={ROOT}")
    plain, of_spec, serve_plain = builds.library, emulator.library_of, lazy.serve
    kernels: dict[Path, set[Path]] = {}

    def serve(binding, find):
        def reported(name):
            path = find(name)
            kernels.setdefault(binding, set()).add(path)
            report(lines_of(path))
            return path

        serve_plain(binding, reported)

    def all_lines(binding):
        return frozenset().union(lines_of(binding), *map(lines_of, kernels.get(binding, ())))

    def library(compiler, texts, includes, links):
        found = plain(compiler, texts, includes, links)
        report(all_lines(found))
        return found

    def library_of(spec):
        found = of_spec(spec)
        report(all_lines(found) | of_templates(spec))
        return found

    library_of.cache_clear = of_spec.cache_clear
    builds.library, emulator.library_of, lazy.serve = library, library_of, serve


@cache
def lines_of(path: Path) -> frozenset[Line]:
    done = subprocess.run(["objdump", "--dwarf=decodedline", str(path)], capture_output=True, text=True, check=True)
    return table(done.stdout)


def table(text: str) -> frozenset[Line]:
    """Our files' lines in the output of objdump: after the path of a file come its rows."""
    found: set[Line] = set()
    file = ""
    for line in text.splitlines():
        if line.startswith("/"):
            head = _FILE.match(line)
            path = Path(head[1]).resolve() if head else ROOT
            file = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
            file = file if file.startswith(FOLDERS) else ""
        elif file and (row := _ROW.match(line)):
            found.add((file, int(row[1])))
    return frozenset(found)


@cache
def of_templates(spec) -> frozenset[Line]:
    from opfacade.jit import codegen
    from tests.mutation.operators.on_gpu import with_parts

    rendered = codegen.render(spec)
    words = {line.strip() for text in (rendered.device, rendered.binding) for line in text.splitlines()}
    found: set[Line] = set()
    paths = codegen.templates(spec)
    if not all((ROOT / path).exists() for path in paths):  # libraries of a single test
        return frozenset()
    for path in with_parts(paths):
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if line.strip() in words or _JINJA.search(line):
                found.add((path, number))
    return frozenset(found)
