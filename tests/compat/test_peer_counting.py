"""How tests of FlashInfer are counted: a refusal is one that the adapter makes by name, in the test's own code."""

import sys
from pathlib import Path

import pytest

from opfacade.errors import UnsupportedError

FOLDER = Path(__file__).resolve().parents[2] / "scripts/peer_tests"
NAMED = "top_k.call: k expected at most 2048, got 4096. [OPF-C001]"
NO_KERNEL = "mla_decode.select: no candidate for target sm_90a [OPF-S002]\n  more"


@pytest.fixture
def judging(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import judging

    yield judging
    for name in ("judging", "flashinfer_stand_in"):
        sys.modules.pop(name, None)


def caused(error, by):
    error.__cause__ = by
    return error


def beside(error, other):
    error.__context__ = other
    return error


def test_each_error_has_its_word(judging):
    from flashinfer_stand_in import NotHere

    cases = {
        "refuse": [
            UnsupportedError(NAMED),
            caused(ValueError("x"), UnsupportedError(NAMED)),
            NotHere("flashinfer.a is not in"),
        ],
        "kernel": [UnsupportedError(NO_KERNEL)],
        "oracle": [judging.OracleLacks("oracle: factors of heads")],
        "words": [AssertionError("Regex pattern did not match.\n Input: 'k expected [OPF-C001]'")],
        "fail": [AssertionError("not close"), beside(AssertionError("not close"), UnsupportedError(NAMED)), ValueError()],
    }
    for word, errors in cases.items():
        for error in errors:
            assert judging.judged("test_a[1]", error, "call")[0] == word, error


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_a_refusal_outside_of_the_tests_own_code_is_none(judging, when):
    for error in (UnsupportedError(NAMED), UnsupportedError(NO_KERNEL), judging.OracleLacks("x"), None):
        assert judging.judged("test_a", error, when)[0] == "setup"


def test_a_wider_call_and_a_removed_test_are_known_by_name(judging):
    wider = next(iter(judging.WIDER))
    assert judging.judged(f"{wider}[x]", AssertionError("DID NOT RAISE <class 'ValueError'>"), "call")[0] == "wider"
    assert judging.judged("test_other", AssertionError("DID NOT RAISE <class 'ValueError'>"), "call")[0] == "fail"
    assert judging.removed("tests/a.py::test_norm_compilation_without_fp8[1]")
    assert not judging.removed("tests/a.py::test_norm")


def test_every_word_has_a_column(judging):
    assert {"pass", "refuse", "kernel", "oracle", "wider", "words", "removed", "setup", "fail", "skip"} == set(judging.WORDS)
