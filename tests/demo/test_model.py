"""`python -m examples.demo --model`: tokens of a real client equal sdpa's; without transformers it raises an error that names
it.
"""

import json
import sys

import pytest
from click.testing import CliRunner

from examples.demo import model
from examples.demo.__main__ import main
from opfacade import errors


@pytest.mark.transformers
def test_the_demo_prints_tokens_skus_and_time_and_succeeds(tmp_path):
    result = CliRunner().invoke(main, ["--model", "tiny-llama", "--device", "cpu", "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    assert "8 of 8 answers equal" in result.output
    assert "tokens/s" in result.output
    found = json.loads((tmp_path / "out.json").read_text())
    assert all(name in result.output for name in found["skus"])
    assert [len(run["tokens"]) for run in found["runs"]] == [8, 8]
    assert "the same tokens in a second run" in result.output
    first, second = found["sampled"]
    assert first == second
    assert [len(tokens) for tokens in first] == [16, 16]
    assert first[0] != first[1]


@pytest.mark.transformers
def test_other_tokens_in_a_second_run_fail_the_demo(monkeypatch):
    continued, count = model._continued, []

    def changed(*given):
        count.append(1)
        found = continued(*given)
        found[1][3] ^= len(count) == 2
        return found

    monkeypatch.setattr(model, "_continued", changed)
    said = []
    assert not model.run("cpu", said.append)
    assert any(line.startswith("WRONG: other tokens in a second run") for line in said)


@pytest.mark.transformers
def test_a_wrong_token_fails_the_demo(monkeypatch):
    generated = model._generated

    def wrong(name, *rest):
        found = generated(name, *rest)
        if name == "opfacade":
            found.tokens[3][5] ^= 1
        return found

    monkeypatch.setattr(model, "_generated", wrong)
    said = []
    assert not model.run("cpu", said.append)
    assert "7 of 8 answers equal" in said[-1]


def test_without_transformers_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(errors.UnsupportedError, match=r"transformers expected to be installed.*pip install.*OPF-I006"):
        model.run("cpu", print)
