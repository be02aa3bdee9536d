"""A selection for a target elsewhere says when this machine's compiler or the target's age decided."""

import json
import re
import warnings

import pytest
from click.testing import CliRunner

from opfacade import Plan, Preference, SkuManifest, Target, explain
from opfacade import plan as plans
from opfacade.backends.cuda import ptxas
from opfacade.base import notices
from opfacade.cli.main import main
from opfacade.errors import TargetWarning
from opfacade.select.registry import examples
from opfacade.select.target_notes import notes

SM90 = Target.parse("sm_90a")
PREFILL = next(e for e in examples() if e.op == "paged_prefill")
DECODE = next(e for e in examples() if e.op == "paged_decode")
OLD = r"paged_prefill on sm_90a: cuda/wgmma_tile would be chosen, but this machine's ptxas 12\.8 miscompiles it"


@pytest.fixture(autouse=True)
def _first(monkeypatch):
    """No note was shown before."""
    monkeypatch.setattr(notices, "_told", {})
    plans.forget_selections()
    yield
    plans.forget_selections()


@pytest.fixture
def old(monkeypatch):
    monkeypatch.setattr(ptxas, "release", lambda: (12, 8))


def told(act, *given, **named):
    """The texts of TargetWarnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act(*given, **named)
    return [str(w.message) for w in found if issubclass(w.category, TargetWarning)]


@pytest.mark.parametrize(
    "act",
    [
        lambda: Plan._select(PREFILL, None, SM90),
        lambda: explain(PREFILL, target=SM90),
        lambda: SkuManifest.freeze([PREFILL, PREFILL], target=SM90),
    ],
    ids=["select", "explain", "freeze"],
)
def test_a_kernel_that_an_old_ptxas_leaves_out_is_told_once(old, act):
    with pytest.warns(TargetWarning, match=OLD):
        act()
    assert told(act) == []


def test_without_a_kernel_left_out_nothing_is_told(old, monkeypatch):
    assert told(explain, DECODE, target=SM90) == []
    assert told(explain, PREFILL, target=Target.parse("sm_80")) == []
    monkeypatch.setattr(ptxas, "release", lambda: (13, 3))
    assert told(explain, PREFILL, target=SM90) == []


def test_a_kernel_that_the_caller_does_not_want_is_not_told(old):
    for prefer in (Preference(forbid=("wgmma_tile",)), Preference(backend="reference")):
        assert told(explain, PREFILL, prefer, SM90) == []


def test_a_kernel_behind_the_chosen_one_is_not_told(old):
    options = explain(PREFILL, target=SM90).options
    left_out = next(option for option in options if option.reasons and {r.code for r in option.reasons} == {"OPF-S018"})
    chosen = next(option for option in options if not option.reasons)
    assert len(list(notes("paged_prefill", SM90, [left_out, chosen]))) == 1
    assert list(notes("paged_prefill", SM90, [chosen, left_out])) == []


def test_explain_has_it_in_words_and_as_data(old):
    found = explain(PREFILL, target=SM90)
    (note,) = json.loads(found.to_json())["notes"]
    assert f"  note     {note}" in str(found)
    assert note.endswith("[OPF-S018]")


def test_the_command_freezes_and_tells(old, tmp_path):
    (tmp_path / "p.json").write_text(PREFILL.model_dump_json())
    shown = CliRunner().invoke(main, ["manifest", "freeze", str(tmp_path / "p.json"), "--target=sm_90a"])
    assert shown.exit_code == 0
    assert re.search(f"^warning: .*{OLD}", shown.stderr, re.MULTILINE)
    assert "mma_tile" in shown.output


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a", "sm_120a"])
def test_an_architecture_after_the_last_that_was_measured_is_told_once(arch):
    target = Target.parse(arch)
    assert told(Plan._select, DECODE, None, target) == [
        f"not tuned for {arch}: no kernel was measured on an architecture after sm_90a."
    ]
    assert told(Plan._select, PREFILL, None, target) == []
    assert "not tuned for" in str(explain(DECODE, target=target))


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "cpu"])
def test_others_are_not(arch):
    assert told(explain, DECODE, target=Target.parse(arch)) == []


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_an_architecture_without_its_letter_is_asked_about_once(arch):
    (text,) = told(Target.parse, arch)
    assert f'Target.parse("{arch}"): did you mean {arch}a?' in text
    assert told(Target.parse, arch) == []
    assert Target.parse(arch).arch == arch


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_100f", "sm_89", "sm_80", "cpu"])
def test_others_are_what_was_meant(arch):
    assert told(Target.parse, arch) == []
