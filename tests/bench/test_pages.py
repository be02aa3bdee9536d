"""Pages agree with the records, their examples run, their links resolve, and each op's page lists its candidates."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from bench import pages, reliability
from opfacade.core.target import Target
from opfacade.tools import catalogue

ROOT = Path(__file__).resolve().parents[2]
OPS = sorted((ROOT / "docs/ops").glob("*.md"))
NOTEBOOK = ROOT / "docs/notebook"
WIDTH = 128
FIGURE = re.compile(r"\d(?:\.\d+)? ?(?:us|ms|s|TB/s|TFLOP/s|%|times)\b|\bx\d")


def listed():
    """Files that git tracks or would add; without git, all files of the folders with pages and sources."""
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = git.stdout.split("\n") if git.returncode == 0 else [str(path.relative_to(ROOT)) for path in walked()]
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def walked():
    yield from ROOT.glob("*.md")
    for folder in ("bench", "csrc", "docs", "kernels", "opfacade", "scripts", "tests"):
        yield from (ROOT / folder).rglob("*")


FILES = listed()
MARKDOWN = [path for path in FILES if path.suffix == ".md"]
TEXTS = [path for path in FILES if path.suffix in (".md", ".py", ".h", ".cuh", ".jinja", "") and "results" not in path.parts]


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", pages.PAGES)
def test_what_is_written_from_records_is_what_they_give(page):
    assert (ROOT / page).read_text() == pages.written(page), "run python -m bench.pages"


def test_a_page_without_marks_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "page.md").write_text("# A page\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setitem(pages.PAGES, "page.md", lambda page: ["a line"])
    with pytest.raises(SystemExit, match="expected <!-- written by"):
        pages.written("page.md")
    (tmp_path / "page.md").write_text(f"before\n{pages.FIRST}\nold\n{pages.LAST}\nafter\n")
    assert pages.written("page.md") == f"before\n{pages.FIRST}\na line\n{pages.LAST}\nafter\n"


def test_a_line_compares_with_the_fastest_peer_of_the_same_time():
    sku = "attention/paged_decode/cuda/sm_90a/split_kv@1/kv=bf16/strided/head_dim=128,split=pieces/g2.0"
    ours = {"impl": "opfacade", "sku": sku, "dirty_us": {"median": 9.0}, "clean_us": {"median": 4.0}}
    peers = [{"impl": "slow", "clean_us": {"median": 8.0}}, {"impl": "fast (dense)", "clean_us": {"median": 6.0}}]
    peers += [{"impl": "of another time", "dirty_us": {"median": 1.0}}, {"impl": "none", "failed": "no"}]
    wanted = "| a | split_kv, pieces | 4.0 | 2.00 TB/s | 0.50 | fast 6.0 | 1.50 |"
    assert pages.line("a", ours, peers, ("2.00 TB/s", 0.5)) == wanted
    assert pages.line("a", ours, peers[2:], None) == "| a | split_kv, pieces | 4.0 |  |  |  |  |"


@pytest.fixture
def poisoned():
    """New memory holds NaN, so that an example that reads uninitialised memory fails each time."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("page", OPS, ids=name)
def test_the_examples_of_an_op_run(page, poisoned):
    """The first example creates and runs a plan; later examples continue from it."""
    examples = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    torch.manual_seed(0)
    names = {}
    for example in examples:
        exec(compile(example, str(page), "exec"), names)
    for operand in (operand for operand, spec in names["desc"].operands().items() if spec.written):
        written = getattr(names["args"], operand).float()
        assert torch.isfinite(written).all(), operand
        assert written.abs().sum() > 0, operand


@pytest.mark.parametrize("page", OPS, ids=name)
def test_a_figure_of_speed_stands_in_the_table_alone(page):
    before, _, rest = page.read_text().partition(pages.FIRST)
    text = before + rest.partition(pages.LAST)[2]
    assert not FIGURE.search(text), FIGURE.search(text)


def test_every_family_has_a_page_which_names_its_ops_and_candidates():
    families = {path.stem for path in (ROOT / "opfacade/plans").glob("[a-z]*.py")}
    assert {page.stem for page in OPS} == families | {"recipes"}  # descriptors of maps, not a separate family
    texts = "".join(page.read_text() for page in OPS)
    for row in catalogue.candidates(Target.parse("sm_90a")):
        assert f"`{row.op}`" in texts, row.op
        assert f"`{row.backend}/{row.impl}`" in texts, row.impl


def linked(page):
    """Relative links of a page, outside of code."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+:", link)]


@pytest.mark.parametrize("page", MARKDOWN, ids=name)
def test_links_lead_somewhere(page):
    for link in linked(page):
        place, _, heading = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{name(page)}: {link}"
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}, link


def test_a_page_that_is_named_anywhere_exists():
    wrong = []
    for path in TEXTS:
        if NOTEBOOK in path.parents:
            continue
        for found in re.findall(r"(?<![\w/.])docs/[\w/]+\.(?:md|png)", path.read_text(errors="replace")):
            if not (ROOT / found).exists():
                wrong.append(f"{name(path)}: {found}")
    assert not wrong


def test_every_record_is_named_by_a_page_or_a_test():
    pages_and_tests = [path for path in TEXTS if path.suffix in (".md", ".py") and NOTEBOOK not in path.parents]
    text = "".join(path.read_text() for path in pages_and_tests if path.suffix == ".md" or "tests" in path.parts)
    for path in FILES:
        if path.parent == ROOT / "bench/results":
            assert f"{path.name}" in text, f"{name(path)} is named by no page and no test"
            assert not re.match(r"\d", path.name), f"{name(path)}: a record is named without a date"


def test_what_lies_among_the_data_of_tests_is_read_by_one():
    text = "".join(path.read_text() for path in TEXTS if path.suffix == ".py" and "tests" in path.parts)
    for path in (ROOT / "tests/data").iterdir():
        assert path.name in text or f'"{path.stem}"' in text, name(path)


@pytest.mark.parametrize("page", [page for page in MARKDOWN if NOTEBOOK not in page.parents], ids=name)
def test_lines_are_no_longer_than_those_of_code(page):
    """Except lines of a table, which cannot be broken."""
    long = [at for at, line in enumerate(page.read_text().splitlines(), 1) if len(line) > WIDTH and not line.startswith("|")]
    assert not long, f"{name(page)}: lines {long}; scripts/wrap breaks them"


def test_the_readme_has_the_sums_of_every_record():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert " ".join(reliability.sums()) in text
    assert text.count("faults planted by hand, ") == 3
    assert "faults made by operators, seed " in text
