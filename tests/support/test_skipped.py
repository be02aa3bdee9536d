"""A run of pytest ends with what was skipped and why, in one process and in several."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import skipped

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
@pytest.mark.skip(reason="need a GPU")
def test_a(n): ...

def test_b():
    pytest.skip("no g++ here")

@pytest.mark.skipif(True, reason="need a GPU")
def test_c(): ...

@pytest.mark.xfail(reason="not a skip")
def test_d():
    assert False

def test_e(): ...
"""


CONFTEST = """
from tests.support import skipped

def pytest_collection_modifyitems(config, items):
    skipped.skip(config, items, {item: "need a GPU" for item in items if "left" in item.name})
"""
LEFT = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_left(n):
    assert False

def test_b():
    pytest.skip("need a GPU")

def test_c(): ...
"""


def ran(folder, text, *more):
    (folder / "test_it.py").write_text(text)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.support.skipped",
        "-p",
        "no:cacheprovider",
        f"--rootdir={folder}",
    ]
    return subprocess.run([*words, *more, str(folder)], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_reasons_are_counted_and_the_most_frequent_stands_first(tmp_path, workers):
    done = ran(tmp_path, TESTS, *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "5 skipped" in line and line.startswith("="))
    assert lines[at + 1 : at + 3] == ["4 need a GPU", "1 no g++ here"]
    assert "not a skip" not in done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_what_needs_a_gpu_is_no_work_for_workers_and_is_counted_all_the_same(tmp_path, workers):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    done = ran(tmp_path, LEFT, "-vv", *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.endswith("need a GPU")] == ["4 need a GPU"]
    assert any(line.strip("= ") == "4 skipped" for line in lines)
    assert sum("test_left" in line for line in lines) == (0 if workers else 3)


def test_nothing_is_printed_where_nothing_was_skipped(tmp_path):
    assert "skipped" not in ran(tmp_path, "def test_a(): ...").stdout


def test_a_module_that_is_skipped_as_a_whole_counts_once(tmp_path):
    done = ran(tmp_path, "import pytest\npytest.skip('no such library', allow_module_level=True)")
    assert "1 no such library" in done.stdout.splitlines()


def test_rare_reasons_share_a_line_and_a_long_one_is_cut():
    texts = [
        *(f"Skipped: reason {n}" for n in range(skipped.MOST + 3)),
        "Skipped: common",
        "Skipped: common",
        "Skipped: " + "x" * 500,
    ]
    lines = skipped.lines([SimpleNamespace(longrepr=("file", 1, text)) for text in texts])
    assert lines[0] == "2 common"
    assert lines[-1] == "5 for 5 other reasons: run with -rs"
    assert len(lines) == skipped.MOST + 1
    (cut,) = skipped.lines([SimpleNamespace(longrepr=("file", 1, texts[-1]))])
    assert cut == "1 " + "x" * (skipped.WIDEST - 3) + "..."
