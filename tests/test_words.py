"""Comments and docstrings use plain technical English: no word of the old private dialect, no sentence without a subject.

The rule is CONTRIBUTING's; docs/glossary.md defines the terms.
"""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TREES = (
    "opfacade/",
    "kernels/",
    "csrc/",
    "bench/*.py",
    "tests/",
    "scripts/",
    "docs/glossary.md",
    "docs/design.md",
    "CONTRIBUTING.md",
)
SUFFIXES = (".py", ".h", ".cuh", ".jinja", ".md")
# The dialect, and the field's term for it.
BANNED = {
    r"vouch\w*": "contains, checks",
    r"lends?|lent|lending": "borrows",
    r"(?:un)?said": "default, requested, stated",
    r"steep": "large slope",
    r"wild": "non-finite",
    r"rooms?(?= of| for (?:the|a) )": "extent, capacity",
    r"l[ae]ts? go": "release, flush",
    r"on (?:its|their) way": "in flight",
    r"ask(?:s|ed)? for": "load, issue, request",
    r"playing": "in flight",
    r"blocks? that stays?": "persistent CTA",
    r"copy engine": "TMA",
    r"outgrown?|outgrows": "exceeds base, needs rescale",
    r"(?:some|any|every)body|whoever": "name the subject",
    r"(?:is|are|was|be|being) told": "receives",
    r"(?<!bench\.)(?<!bench/)sweeps?|swept": "zero, remove",
    r"at hand|anew": "current, again",
}
WORDS = re.compile(r"\b(?:" + "|".join(BANNED) + r")\b", re.IGNORECASE)
OPENER = re.compile(r"(?:^|[.;:!?] )(?:Of|Who|Whose|Those (?:that|who|of|with)|What)\b(?![^.;]*\?)")
# Pages other than the notebook, and the texts of the package named below, also avoid these phrases. Each one stands beside the
# usual form.
PLAIN = {
    r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b)[a-z]\w*": "is not a",
    r"without a word": "silently",
    r"cures?": "fix",
    r"peer over ours": "speed-up over the fastest peer",
    r"as \w+ has (?:it|them)": "as in",
    r"any distance apart": "with any stride",
    r"truths": "bools",
    r"side by side": "adjacent, contiguous",
    r"lies? (?:in|on|at|beside|behind|one|along|as)": "is, is stored",
    r"(?:one|bytes?|elements?|scales?|rows?|bits?|launch|slopes?|tokens?) a "
    r"(?:row|token|page|column|head|rank|block|second|step|device|process|channel)": "per",
    r"in force": "current",
    r"at computed places": "at computed positions",
    r"(?:as|was|were) told": "as passed to",
    r"in the making": "under construction",
    r"no equal here": "no equivalent",
    r"means? nothing": "is invalid",
    r"that is none": "is unknown, is invalid",
    r"in turns": "alternately",
    r"pays (?:mostly|most|off)": "is faster",
    r"keeps? what (?:it|they) holds?": "keeps its value",
    r"means none": "is treated as -1",
    r"(?:tokens?|kernel|operands|cache|schemas) of (?:its|their) own": "its own",
}
PLAIN_WORDS = re.compile(r"\b(?:" + "|".join(PLAIN) + r")\b")
READ = (  # parts of the package whose docstrings and messages users read
    "plans", "recipes", "compat", "cli", "errors.py", "env.py", "distributed", "integrations", "select", "core", "serving",
    "telemetry", "observe", "validation", "tools", "tune", "backends/library", "models", "base", "jit", "exporters.py",
    "torch_ops",
)  # fmt: skip
# Comments of device code and backends avoid the same phrases, except in these folders and files.
UNUSUAL_LEFT = (
    "kernels/matmul/", "kernels/moe/", "kernels/sampling/", "csrc/matmul/", "opfacade/backends/cuda/matmul",
    "opfacade/backends/cuda/sampling/",
)  # fmt: skip
# The old dialect in names of functions and classes: the count only falls.
DIALECT = re.compile(
    r"(?:^|_)(?:nobody|somebody|anybody|everybody|whoever|vouch\w*|lends?|lent|steep|wild|rooms?|playing|astray|told|swept)(?:_|$)",
    re.I,
)
NAMES_LEFT = 153
IDENTIFIERS = re.compile(
    r"\b(?:once_a_kind|once_in_a_row|kSideBySide|kTeams|TeamRows|SplitRun|PieceSurvey|kMostParts|kRooms?|MlaAdder|MlaWeigher)\b"
)


def files():
    listed = subprocess.run(["git", "ls-files", *TREES], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in listed if path.endswith(SUFFIXES) and path != "tests/test_words.py"]  # which has them all


def prose(path, text):
    """Paragraphs of comments and docstrings, each as one line: a sentence may span lines."""
    if path.endswith(".py"):
        return _python_prose(text)
    if path.endswith(".md"):
        return re.split(r"\n\s*\n", text)
    comments = re.findall(r"((?:^[ \t]*//[^\n]*\n)+)|//([^\n]*)|\{#(.*?)#\}", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"^[ \t]*//", "", "".join(group), flags=re.MULTILINE) for group in comments]


def _python_prose(text):
    found, last = [], -2
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and token.string.startswith('"""'):
            found += re.split(r"\n\s*\n", token.string.strip('"'))
        elif token.type == tokenize.COMMENT:
            words = token.string.lstrip("# ")
            if token.start[0] == last + 1 and token.line.lstrip().startswith("#"):
                found[-1] += "\n" + words
            else:
                found.append(words)
            last = token.start[0]
    return found


def faults(path, text):
    found = []
    for paragraph in prose(path, text):
        line = " ".join(paragraph.split())
        found += [f"{path}: {match[0]!r} in {line[:100]!r}" for match in (*WORDS.finditer(line), *OPENER.finditer(line))]
    return found + [f"{path}: {match[0]!r}" for match in IDENTIFIERS.finditer(text)]


def read_by_users():
    """(path, text) of each page, and of each string and docstring of the listed modules."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if "notebook" not in page.parts:
            yield page.relative_to(ROOT), page.read_text()
    for name in READ:
        place = ROOT / "opfacade" / name
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


HEADING = re.compile(r"^#+ (?:Of|Who|Whose|Those|What)\b[^\n]*(?<!\?)$", re.MULTILINE)


def plain_faults(text):
    line = " ".join(text.split())
    return [line[max(0, match.start() - 40) : match.end() + 40] for match in PLAIN_WORDS.finditer(line)]


def names_of_the_dialect():
    for path in files():
        if path.endswith(".py"):
            for node in ast.walk(ast.parse((ROOT / path).read_text())):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and DIALECT.search(node.name):
                    yield f"{path}: {node.name}"


def test_pages_and_messages_use_the_usual_forms():
    found = [f"{path}: {fault!r}" for path, text in read_by_users() for fault in plain_faults(text)]
    assert not found, "\n".join(found)


def test_comments_of_device_code_and_backends_use_the_usual_forms():
    trees = ("kernels/", "csrc/", "opfacade/backends/")
    paths = [path for path in files() if path.startswith(trees) and not path.startswith(UNUSUAL_LEFT)]
    lines = [(path, line) for path in paths for line in prose(path, (ROOT / path).read_text())]
    found = [f"{path}: {fault!r}" for path, line in lines for fault in plain_faults(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "A list is no tensor.",
        "It takes one scale a row.",
        "as torch has it",
        "rows lie in pages",
        "as plan() was told",
        "truths",
    ],
)
def test_an_unusual_form_is_found(text):
    assert plain_faults(text)


@pytest.mark.parametrize("text", ["There is no backward.", "It is no longer used.", "one scale per row", "a truth value"])
def test_a_usual_form_passes(text):
    assert not plain_faults(text)


def test_a_heading_is_a_subject_or_a_question():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/ops").glob("*.md")),
    ]
    found = [f"{page.relative_to(ROOT)}: {match[0]}" for page in pages for match in HEADING.finditer(page.read_text())]
    assert not found, "\n".join(found)
    assert HEADING.search("# What limits it\n")
    assert not HEADING.search("## What does it cost?\n")


def test_names_of_the_dialect_grow_fewer():
    found = list(names_of_the_dialect())
    assert len(found) <= NAMES_LEFT, "\n".join(found)


def test_comments_and_docstrings_use_the_terms_of_the_glossary():
    found = [fault for path in files() for fault in faults(path, (ROOT / path).read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", '"""Of a request: its length."""\n'),
        ("a.py", "x = 1  # What was unsaid stays.\n"),
        ("a.py", "# A tile that is on\n# its way.\nx = 1\n"),
        ("a.cuh", "// Blocks that stay take tiles.\n"),
        ("a.cuh", "int x;  // the copy engine loads it\n"),
        ("a.jinja", "{# Who asks for it waits. #}\n"),
        ("a.cuh", "constexpr int kTeams = 1;\n"),
    ],
)
def test_the_dialect_is_found(path, text):
    assert faults(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "a.py",
            '"""The request that a user asked; what follows is data. Is it a tile? What is one?"""\nwild = "vouch for it"\n',
        ),
        ("a.cuh", 'static_assert(x, "the launch asks for less");  // largest dimension of all\n'),
        ("a.py", "# The room is full; it outgrew nothing.\nx = 1\n"),
    ],
)
def test_ordinary_english_and_strings_pass(path, text):
    assert not faults(path, text)
