"""Records name the commit of their sources, even if the sources are not a checkout."""

import json
import shutil
import subprocess

import pytest

from bench import host, records, torch_ops
from opfacade.tools import kernel_digests

HEAD = subprocess.run(
    ["git", "-C", str(records.RESULTS), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
).stdout.strip()


@pytest.mark.parametrize("bench", [host, torch_ops])
@pytest.mark.parametrize(("words", "commit"), [(["--commit", "0123abc"], "0123abc"), ([], HEAD or None)])
def test_the_commit_of_a_record_may_be_given(monkeypatch, tmp_path, bench, words, commit):
    monkeypatch.setattr(bench, "measure", lambda: {"run": 1.0})
    bench.main([*words, "--out", str(tmp_path / "record.json")])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["machine"]["commit"] == commit
    assert record["us"] == {"run": 1.0}
    assert kernel_digests.is_present(record["kernels"])


def test_without_git_or_a_checkout_no_commit_is_made_up(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    assert records.commit(None) is None
    assert records.commit("0123abc") == "0123abc"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert records.commit(None) is None
