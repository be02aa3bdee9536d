"""Every code block of every page runs, or is skipped with its requirement as the reason."""

import re

import pytest
import torch

from opfacade.cli.main import main
from tests.docs.blocks import ROOT, Block, blocks, lacking, run

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench/README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [page for page in PAGES if "notebook" not in page.parts]
# Pages whose own test runs every Python block and checks the result.
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/integrations.md": "tests/integrations/test_docs.py",
    "docs/migrating.md": "tests/compat/test_migrating.py",
    "docs/torch_compile.md": "tests/torch_ops/test_page.py",
    **{str(page.relative_to(ROOT)): "tests/bench/test_pages.py" for page in (ROOT / "docs/ops").glob("*.md")},
}
RUN = ("python", "console")
SHOWN = ("", "text", "sh")  # listings, synopses, and scripts/, which the README's test covers


def name(page):
    return str(page.relative_to(ROOT))


HERE = [page for page in PAGES if name(page) not in ELSEWHERE and any(b.language in RUN for b in blocks(page))]
MARKED = [block for page in HERE for block in blocks(page) if block.mark.startswith("needs")]
ON_A_GPU = [page for page in HERE if any(block.mark == "needs a GPU" for block in blocks(page))]


@pytest.mark.parametrize("page", HERE, ids=name)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "cache export" in page.read_text():  # this counts the entries of the cache
        monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(0)
    names = {"__name__": page.stem}
    for block in blocks(page):
        if not lacking(block):
            run(block, names, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("page", ON_A_GPU, ids=name)
def test_the_blocks_of_a_page_run_on_a_gpu(page, tmp_path, monkeypatch):
    test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch)


def test_graphs_of_the_site_are_among_what_runs_on_a_gpu():
    assert "docs/howto.md" in map(name, ON_A_GPU)


@pytest.mark.parametrize("block", MARKED, ids=lambda block: f"{block.page}-{block.line}")
def test_a_block_with_a_need_runs_where_it_is_met(block):
    """In this case the test of its page has run it."""
    if lacking(block):
        pytest.skip(lacking(block))


@pytest.mark.parametrize("page", HERE, ids=name)
def test_commands_of_a_page_and_their_options_exist(page):
    """Skipped blocks are counted too."""
    for block in blocks(page):
        for command, words in re.findall(r"^\$ (?:\w+=\S+ )*opfacade (\w+)(.*)", block.text, re.MULTILINE):
            found = main.commands[command]
            known = {
                option for each in (found, *getattr(found, "commands", {}).values()) for p in each.params for option in p.opts
            }
            assert set(re.findall(r"--[\w-]+", words)) <= known, f"{block.page}:{block.line}: {command}{words}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_of_a_kind_that_is_run_or_only_shown(page):
    for block in blocks(page):
        assert block.language in RUN + SHOWN, f"{block.page}:{block.line}"
        if name(page) in ELSEWHERE:
            assert block.language != "console", f"{block.page}:{block.line} is run by no test"
        if block.language in ("", "text"):
            assert not block.text.startswith(("$ ", "import ", "from ")), f"{block.page}:{block.line}"


def test_a_page_that_is_run_elsewhere_is_read_there():
    for page, test in ELSEWHERE.items():
        text = (ROOT / test).read_text()
        assert page.rpartition("/")[2] in text or "docs/ops" in text


def block(text, mark=""):
    return Block("page.md", 1, mark, "console", "", text)


@pytest.mark.parametrize(
    "text",
    ["$ echo one\ntwo\n", "$ echo b a\na ... b\n", "$ false\n", "$ echo a\n$ echo b\na\n", "$ python -c 'import nothing'\n"],
)
def test_a_command_that_says_or_does_something_else_is_found(text, tmp_path):
    with pytest.raises(AssertionError):
        run(block(text), {}, tmp_path)


def test_a_command_that_does_what_is_shown_passes(tmp_path):
    run(
        block("$ echo one two; echo three\none ...\nthree\n$ X=1 python -c 'import os; print(os.environ[\"X\"])'\n1\n"),
        {},
        tmp_path,
    )
    run(block("$ python -c 'raise ValueError(3)'\n...\nValueError: 3\n", "fails"), {}, tmp_path)
    run(Block("page.md", 1, "", "python", "a.py", "print(5)\n"), {}, tmp_path)
    run(block("$ python a.py\n5\n"), {}, tmp_path)
    run(block("$ OPFACADE_VALIDATE=full opfacade env\n...\nOPFACADE_VALIDATE=full  (environment)\n"), {}, tmp_path)
