"""The judge of a line of a kernel on a GPU: the focused checks of some kinds whose binary has its file, and files of GPU tests.

Kinds are those of the matrix, and the sources of their kernels are rendered to know them: nothing is listed by hand.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache

from tests.mutation.operators.population import ROOT, files

KINDS, FILES = 4, 3  # this number of workers judges one fault: each builds its own kernels
FOLDERS = ("kernels/", "csrc/")
_PART = re.compile(r'"(csrc/[\w/]+\.jinja)"')


def judged_there() -> list[str]:
    """Files of device code and of bindings; Python behaves the same on every machine."""
    return [file for file in files() if file.startswith(FOLDERS)]


def kinds_of(file: str) -> list[str]:
    """Kinds whose kernel includes this file, from as many templates as fit."""
    own = [(template, kind) for kind, (template, held) in _sources().items() if file in held]
    seen: dict[str, int] = {}
    turns = []
    for template, kind in own:
        turns.append((seen.setdefault(template, 0), kind))
        seen[template] += 1
    return [kind for _, kind in sorted(turns, key=lambda one: one[0])][:KINDS]


@cache
def _sources() -> dict[str, tuple[str, frozenset[str]]]:
    """{kind: (template, files of its sources)} on sm_90a, independent of the installed assembler."""
    from opfacade import Plan, Preference, Target
    from opfacade.errors import UnsupportedError
    from opfacade.jit import codegen
    from opfacade.testing import matrix
    from tests.support.assemblers import any_assembler

    found = {}
    with any_assembler():
        for kind, problem in matrix.matrix().items():
            with suppress(UnsupportedError):
                plan = Plan.select(problem, Preference(backend="cuda"), Target.parse("sm_90a"))
                spec = plan.jit_spec
                if spec is None:  # a composite plan, whose kernels belong to other kinds
                    continue
                headers = {path for path, _ in codegen.render(spec).headers}
                found[kind] = spec.template, frozenset(headers | with_parts(codegen.templates(spec)))
    return found


def with_parts(paths: tuple[str, ...]) -> set[str]:
    """Templates with the templates that they include."""
    found, todo = set(), list(paths)
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += _PART.findall((ROOT / path).read_text())
    return found
