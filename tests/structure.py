"""The import graph of the package, held to the order of its packages: `python -m tests.structure` prints what breaks it, and
how many imports are made by name.

Imports inside functions and under TYPE_CHECKING count, and so do imports by a name that stands in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

# Lowest first: a package imports only lower packages and itself. A module at the root counts as a package with one file.
LAYERS = (
    "issue",
    "errors",
    "base",
    "env",
    "telemetry",
    "jit",
    "core",
    "select",
    "validation",
    "observe",
    "plan",
    "serving",
    "distributed",
    "programs",
    "plans",
    "words",
    "recipes",
    "models",
    "backends",
    "torch_ops",
    "testing",
    "tools",
    "tune",
    "bench",
    "report",
    "integrations",
    "compat",
    "cli",
    "__main__",
)
# Older import paths, kept for users: each only re-exports the names of its new module.
OLDER_PATHS = ("autotune", "exporters", "variant", "variant_examples")
# The registry finds families by the names of their files, in layers above it.
BY_NAME = {("select.registry", place) for place in ("plans", "backends", "testing")}
# Modules that import by name: the registry, and the package itself, whose public names are lazy.
IMPORTS_BY_NAME = {"opfacade", "opfacade.select.registry"}
# Calls that import modules without an import statement.
IMPORTERS = ("import_module", "__import__", "spec_from_file_location", "run_module", "run_path")

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "opfacade"


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _nodes(path: Path, changed: int) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def nodes(path: Path) -> list[ast.AST]:
    """All of a file's syntax, parsed once."""
    return _nodes(path, path.stat().st_mtime_ns)


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a file imports anywhere."""
    return {name for node in nodes(path) for name in _named(node, path, known)}


def _named(node: ast.AST, path: Path, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom):
        base = ".".join(path.relative_to(ROOT).parts[: -node.level]) if node.level else ""
        module = ".".join(part for part in (base, node.module or "") if part)
        for alias in node.names:
            whole = f"{module}.{alias.name}"
            if whole in known or module in known:
                yield whole if whole in known else module
    elif _imports_by_name(node):
        yield from (name for name in map(_text_of, node.args) if name in known)


def _imports_by_name(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in IMPORTERS


def dynamic_imports() -> dict[str, int]:
    """How many calls of each module import by name."""
    found = {name: sum(map(_imports_by_name, nodes(path))) for name, path in modules().items()}
    return {name: count for name, count in found.items() if count}


def own_code(path: Path) -> list[str]:
    """Statements of a module that are neither its docstring nor imports: an older path has none."""
    body = [node for node in ast.parse(path.read_text()).body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    return [ast.unparse(node) for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]


def host_lines(family: str) -> int:
    """Host lines of a family, counted by whole files: descriptors, backends, helpers that it alone uses, and templates; no
    device code, harness or test."""
    own = [path for name, path in modules().items() if _belongs_to(name, family) or users().get(name) == {family}]
    templates = [path for path in (ROOT / "csrc" / family).rglob("*") if path.is_file()]
    return sum(len(path.read_text().splitlines()) for path in (*own, *templates))


@cache
def users() -> dict[str, set[str]]:
    """The families that use each module of plans and backends, directly or indirectly."""
    edges, found = graph(), dict[str, set[str]]()
    for family in families():
        reached = [name for name in edges if _belongs_to(name, family)]
        for name in reached:
            used = (one for one in sorted(edges[name]) if one.startswith(("opfacade.plans.", "opfacade.backends.")))
            reached += [one for one in used if one not in reached]
        for name in reached:
            found.setdefault(name, set()).add(family)
    return found


def families() -> list[str]:
    return sorted(path.stem for path in (PACKAGE / "plans").glob("[!_]*.py"))


def _belongs_to(name: str, family: str) -> bool:
    """Whether a module is the family's own in plans or in a backend."""
    parts = name.split(".")
    return parts[1:3] == ["plans", family] or (parts[1:2] == ["backends"] and parts[3:4] == [family])


_BODY = re.compile(r"\)\s*(const|noexcept|override)?\s*$")
_NO_FUNCTION = re.compile(r"\b(if|for|while|switch|namespace|struct|class|else|do)\b[^{}]*$")


def function_lines(text: str) -> dict[int, int]:
    """Lines of each function of C++: {its first line: how many from { to }}. A loop's body has its own braces, and counts
    inside its function."""
    found, open_braces, head, line = dict[int, int](), list[tuple[int, bool]](), "", 1
    for mark in re.sub(r"//[^\n]*|\"(?:\\.|[^\"\n])*\"", "", text):
        line += mark == "\n"
        if mark == "{":
            is_function = bool(_BODY.search(head)) and not _NO_FUNCTION.search(head.strip())
            open_braces.append((line, is_function))
        elif mark == "}" and open_braces:
            first, is_function = open_braces.pop()
            if is_function:
                found[first] = line - first + 1
        head = "" if mark in "{}" or (mark == ";" and head.count("(") == head.count(")")) else head + mark
    return found


def any_parameters(path: Path) -> int:
    """Parameters of type Any: a type checker cannot check their uses."""
    found = 0
    for node in nodes(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            every = node.args
            named = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
            found += sum(
                one is not None and one.annotation is not None and ast.unparse(one.annotation) == "Any" for one in named
            )
    return found


def any_by_package() -> dict[str, int]:
    """Number of parameters of type Any in each package and root module that has some, largest first."""
    found: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found[package] = found.get(package, 0) + any_parameters(path)
    return dict(sorted(((name, count) for name, count in found.items() if count), key=lambda one: (-one[1], one[0])))


def _text_of(node: ast.AST) -> str:
    """The module that a string names; for an f-string, the package that its constant beginning names."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return _text_of(node.values[0]).removesuffix(".")
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def graph() -> dict[str, set[str]]:
    """The import graph; the package itself, whose lazy names reach everything, is left out."""
    known = modules()
    return {name: imports(path, known) - {name, "opfacade"} for name, path in known.items() if name != "opfacade"}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(edges):
        if name not in index:
            visit(name)
    return found


def unit(name: str) -> str:
    """opfacade.plans.attention -> plans; a module at the root is a unit of its own."""
    return name.split(".")[1]


def upward(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Imports that do not point down, except those by which the registry finds families."""
    return [(a, b) for a, b in _all_upward(edges) if (a.partition(".")[2], unit(b)) not in BY_NAME]


def excused(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Allowed upward imports, in addition to those of the registry: the list should be empty."""
    passed = set(_all_upward(edges)) - set(upward(edges))
    return sorted((a, b) for a, b in passed if a != "opfacade.select.registry")


def _all_upward(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    first_user = LAYERS.index("compat")  # code that calls the package like its users may use their import paths
    order = (*LAYERS[:first_user], *OLDER_PATHS, *LAYERS[first_user:])
    rank = {layer: number for number, layer in enumerate(order)}
    pairs = [(a, b) for a, others in edges.items() for b in sorted(others) if unit(a) != unit(b)]
    return [(a, b) for a, b in pairs if rank[unit(b)] >= rank[unit(a)]]


def main() -> int:
    edges = graph()
    found = [f"circle: {' '.join(group)}" for group in circles(without_registry(edges))]
    found += [f"upward: {a} -> {b}" for a, b in upward(edges)]
    dynamic = dynamic_imports()
    found += [f"by name: {name} imports {count} times" for name, count in dynamic.items() if name not in IMPORTS_BY_NAME]
    found += [f"older path with code: {name}" for name in OLDER_PATHS if own_code(PACKAGE / f"{name}.py")]
    print(
        "\n".join([*found, f"{len(edges)} modules, {len(LAYERS)} layers, {len(found)} faults, {len(excused(edges))} excuses"])
    )
    calls = ", ".join(f"{count} in {name}" for name, count in dynamic.items())
    print(f"{sum(dynamic.values())} imports by name: {calls}")
    counts = any_by_package()
    print(f"{sum(counts.values())} parameters of type Any: " + ", ".join(f"{name} {n}" for name, n in counts.items()))
    print("host lines: " + ", ".join(f"{family} {host_lines(family)}" for family in families()))
    return 1 if found else 0


def without_registry(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    return {a: {b for b in others if (a.partition(".")[2], unit(b)) not in BY_NAME} for a, others in edges.items()}


if __name__ == "__main__":
    raise SystemExit(main())
