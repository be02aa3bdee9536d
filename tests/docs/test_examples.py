"""Every file of examples/ runs, on a CPU and on a GPU, checks its results, and is listed on the page of examples."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "common.py")
PAGE = ROOT / "docs/examples.md"


def run(path, monkeypatch):
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, "common", raising=False)  # it finds the device
    try:
        return runpy.run_path(str(path))
    finally:
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        sys.modules.pop("common", None)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_on_a_cpu(path, monkeypatch):
    names = run(path, monkeypatch)
    assert names.get("DEVICE", "cpu") == "cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_on_a_gpu(path, monkeypatch):
    names = run(path, monkeypatch)
    assert names.get("DEVICE", "cuda") == "cuda"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_says_what_it_shows_and_checks_what_it_computed(path):
    text = path.read_text()
    assert text.startswith('"""')
    assert re.search(r"^ *(near|assert|torch.testing.assert_close)\b", text, re.MULTILINE)
    assert len(text.splitlines()) <= 60
    assert "__name__" not in text  # such a guard would skip the example here and pass


def test_the_page_has_every_example_once():
    named = re.findall(r"\(\.\./examples/(\w+)\.py\)", PAGE.read_text())
    assert sorted(named) == sorted(["common", *(path.stem for path in EXAMPLES)])
    assert len(named) > 30


def test_a_page_about_its_topic_links_every_example():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/ops").glob("*.md")]
    linked = {name for page in pages if page != PAGE for name in re.findall(r"/examples/(\w+)\.py\)", page.read_text())}
    assert [path.stem for path in EXAMPLES if path.stem not in linked] == []


def test_a_wrong_result_fails_an_example(monkeypatch):
    from opfacade.plan import Plan

    def wrong(plan, args, workspace=None):
        args.out.zero_()

    monkeypatch.setattr(Plan, "run", wrong)
    with pytest.raises(AssertionError):
        run(ROOT / "examples/softmax.py", monkeypatch)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["prefill_over_ranks", "tensor_parallel_layer"])
def test_an_example_of_ranks_runs_on_three(name):
    """The ranks of 512 tokens have different numbers of rows."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([*launch, str(ROOT / f"examples/{name}.py")], check=True, timeout=240, env=environment)
