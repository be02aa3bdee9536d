"""Which test files judge a line: those that caught a fault of its file before, import it, name what it is in, or lie beside.

No list is written by hand. The order is that of the evidence, so that a fault ends early; a number of files bounds its time.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

from tests.mutation.operators.population import ROOT, files

LEAST, MOST = 4, 8
RECORDS = ("mutation", "operators", "operators_gpu")
_OF_CXX = re.compile(r"(?:struct|class) (\w+)|\b(\w+)\([^;{}]*\)[^;{}()]*\{")
_WORD = re.compile(r"\w+")
# Weights of the evidence; a test that imports a module is more likely to test it than a test in the same folder.
CAUGHT, NAMES, IMPORTS, BESIDE, STEM = 6.0, 3.0, 4.0, 1.0, 2.0


def tests_of(file: str, line: int, *, gpu: bool) -> list[str]:
    """Test files, the most likely one first. gpu: files with tests that need a GPU."""
    scores: Counter[str] = Counter()
    caught = _caught(gpu).get(file, Counter())
    most = max(caught.values(), default=1)
    scores.update({test: CAUGHT * (0.5 + times / most) for test, times in caught.items()})
    known = _words(gpu)
    names, stem = _names_at(file, line), _stem(file)
    for test, words in known.items():
        own = sum(NAMES / (1 + _spread(gpu)[name]) ** 0.5 for name in names if name in words)
        own += IMPORTS * _imports(file, test) + BESIDE * _is_beside(file, test) + STEM * (stem in _stem(test))
        scores[test] += own
    return [test for at, (test, score) in enumerate(scores.most_common(MOST)) if score > BESIDE or at < LEAST]


@cache
def _words(gpu: bool = False) -> dict[str, frozenset[str]]:
    """The words of every test file that CI runs, or of those that a GPU adds."""
    paths = (path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path.parent.name != "mutation")
    texts = {path: path.read_text() for path in paths}
    found = {path: text for path, text in texts.items() if (_is_for_gpu(text) if gpu else "gpu" not in path.stem)}
    return {str(path.relative_to(ROOT)): frozenset(_WORD.findall(text)) for path, text in found.items()}


def _is_for_gpu(text: str) -> bool:
    """Whether a file has tests for a GPU; files that first build hundreds of kernels take longer than a fault may."""
    return "mark.gpu" in text and "build_first" not in text


@cache
def _spread(gpu: bool = False) -> Counter[str]:
    """In how many test files a word occurs: a word that occurs everywhere says little."""
    return Counter(word for words in _words(gpu).values() for word in words)


@cache
def _caught(gpu: bool = False) -> dict[str, Counter[str]]:
    """The test files that caught a fault in each file, from the record."""
    found: dict[str, Counter[str]] = {}
    for name in RECORDS:
        path = ROOT / f"bench/results/{name}.json"
        for part in json.loads(path.read_text()).values() if path.exists() else ():
            for row in part.get("mutants", ()) if isinstance(part, dict) else ():
                test = row["caught_by"].partition("::")[0]
                if test in _words(gpu):
                    found.setdefault(row["file"], Counter())[test] += 1
    return found


def _stem(file: str) -> str:
    return Path(file).name.partition(".")[0].removeprefix("test_").strip("_")


@cache
def _mentions(test: str) -> frozenset[str]:
    """The files that a test imports or names."""
    text = (ROOT / test).read_text()
    found = set(re.findall(r"[\w/]+(?:\.\w+)*\.(?:cuh|h|cc|jinja|py)\b", text))
    return frozenset(found | _imported(text))


def _imported(text: str) -> set[str]:
    """The files of the modules that a Python text mentions; a name in a module may be a module too."""
    modules = set(re.findall(r"\bopfacade(?:\.\w+)*", text))
    for module, names in re.findall(r"from (opfacade[\w.]*) import (\([^)]*\)|[^\n]+)", text):
        modules |= {f"{module}.{name}" for name in _WORD.findall(names)}
    places = (module.replace(".", "/") for module in modules)
    return {f"{place}{end}" for place in places for end in (".py", "/__init__.py")}


def _imports(file: str, test: str) -> float:
    """1 if a test names the module or the header, half if it names one that includes it."""
    if file in _mentions(test):
        return 1.0
    return 0.5 * bool(_users().get(file, frozenset()) & _mentions(test))


@cache
def _users() -> dict[str, set[str]]:
    """The files that import or include each file directly."""
    found: dict[str, set[str]] = {}
    for file in files():
        text = (ROOT / file).read_text()
        headers = re.findall(r'(?:include|extends|import|from) ["\']([\w/.]+)["\']', text)
        used = {name if name.startswith("kernels/") else f"csrc/{name.removeprefix('csrc/')}" for name in headers}
        for place in used | (_imported(text) if file.endswith(".py") else set()):
            found.setdefault(place, set()).add(file)
    return found


def _is_beside(file: str, test: str) -> bool:
    """Whether a test belongs to the same family or package, or tests kernels in the emulator."""
    own, its = Path(file).parts[:-1], Path(test).parts[1:-1]
    return bool(set(own) & set(its) - {"opfacade", "kernels", "csrc"}) or (own[0] != "opfacade" and "emulator" in its)


def _names_at(file: str, line: int) -> list[str]:
    """The names of the function and class around a line of Python, or of the C++ function above it, including private names."""
    text = (ROOT / file).read_text()
    if file.endswith(".py"):
        return [node.name for node in _definitions(file) if node.lineno <= line <= (node.end_lineno or 0)]
    above = "\n".join(text.splitlines()[:line])
    return [name for pair in _OF_CXX.findall(above)[-2:] for name in pair if name]


@cache
def _definitions(file: str) -> list[ast.FunctionDef | ast.ClassDef]:
    tree = ast.parse((ROOT / file).read_text())
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
