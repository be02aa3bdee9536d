"""The pages of the site: error codes are explained, pages are in the index, paths and links resolve."""

import ast
import importlib
import re
import runpy
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CODE = re.compile(r"OPF-[A-Z][0-9]{3}")


def in_sources():
    for folder in ("opfacade", "csrc", "kernels"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                yield from CODE.findall(path.read_text(errors="replace"))


def test_every_code_is_explained_once_and_no_other():
    rows = re.findall(r"^\| (OPF-[A-Z][0-9]{3}) \| (.*) \|$", (DOCS / "errors.md").read_text(), re.MULTILINE)
    explained = [code for code, _ in rows]
    assert len(explained) == len(set(explained))
    assert set(in_sources()) - set(explained) == set(), "explain it in docs/errors.md"
    assert set(explained) - set(in_sources()) == set(), "docs/errors.md explains what nothing raises"
    assert all(text.endswith(".") for _, text in rows)


def test_every_page_is_in_the_index_of_the_site():
    index = (ROOT / "mkdocs.yml").read_text()
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "notebook" not in path.parts}
    assert {page for page in pages if page not in index} == set()


def test_every_test_that_trust_names_exists():
    named = re.findall(r"`(tests/[\w/.]+)`", (DOCS / "trust.md").read_text())
    assert len(named) > 8
    assert not [name for name in named if not (ROOT / name).exists()]


def test_generated_pages_say_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFACADE_DISABLE_JIT", "1")  # the script sets it; it is removed again after the test
    runpy.run_path(str(ROOT / "scripts/docs_pages"))["write"](tmp_path)
    support = (tmp_path / "support.md").read_text()
    fast = "f16, bf16, f8_e4m3 cache, f8_e5m2 cache"
    assert f"| `paged_prefill` | sm_90a | {fast} | 64, 128, 256 | `cuda/wgmma_tile` |" in support
    assert "| `paged_prefill` | sm_90a | f8_e4m3 cache and q | 128 | `cuda/wgmma_fp8_tile` |" in support
    assert "| `paged_decode` | sm_80 | f16, bf16, f32 | 64, 128, 256 | `cuda/split_kv` |" in support
    assert "| `paged_decode` | cpu |" in support
    assert "| `mla_decode` | `BatchMlaDecodeDescriptor` | `cuda/latent_tiles` | 3 of 4 |" in support
    reference = (tmp_path / "reference.md").read_text()
    assert "| `kv_split` | `auto` |" in reference
    assert "| `block_table` | in | i32 | `page_table`: `'block'` | int32 [batch_size, max_pages]" in reference
    assert "::: opfacade.plan.Plan" in reference
    assert "| `page_size` | required |" in reference


def test_links_of_the_site_stay_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFACADE_DISABLE_JIT", "1")  # the script sets it; it is removed again after the test
    shutil.copytree(DOCS, tmp_path / "docs")
    runpy.run_path(str(ROOT / "scripts/docs_pages"))["evidence"](tmp_path / "docs")
    runpy.run_path(str(ROOT / "scripts/docs_links"))["main"](tmp_path / "docs")
    pages = sorted((tmp_path / "docs").rglob("*.md"))
    links = [(page, link) for page in pages for link in outward(page.read_text())]
    assert any(link.endswith("files/bench/results/decode.json") for _, link in links)
    for page, link in links:
        target = (page.parent / link).resolve()
        assert target.is_relative_to(tmp_path / "docs"), f"{page.name}: {link}"
        assert target.exists(), f"{page.name}: {link}"


def outward(text):
    """Targets of relative links, without anchors and outside of code."""
    plain = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s#]+)", plain) if not re.match(r"\w+:", link)]


def test_paths_on_pages_exist():
    """Except those of the family that CONTRIBUTING invents."""
    pages = [ROOT / "README.md", ROOT / "bench/README.md", *DOCS.glob("*.md"), *DOCS.glob("ops/*.md")]
    later = {"opfacade/tuned/"}  # files of a release, not of the sources
    paths = re.compile(r"`((?:backends|bench|csrc|docs|kernels|opfacade|scripts|tests)/[\w/.*-]+)`")
    for page in pages:
        for path in paths.findall(page.read_text()):
            if "KIND" not in path and path not in later:
                assert list(ROOT.glob(path)) or list((ROOT / "opfacade").glob(path)), f"{page.name}: {path}"


def imported():
    """(page, module, name) of every name that the code of a page imports from a public module of plans."""
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opfacade.plans."):
                    yield from ((page.name, node.module, alias.name) for alias in node.names)


def test_what_a_page_imports_is_public():
    found = list(imported())
    assert ("kv_cache.md", "opfacade.plans.kv_cache", "even_page_table") in found
    wrong = [one for one in found if one[2] not in importlib.import_module(one[1]).__all__]
    assert not wrong, "add it to __all__"
