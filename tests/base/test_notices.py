"""Warnings of the library if stderr does not exist, and warnings that must not raise."""

import os
import subprocess
import sys
import warnings

import pytest

from opfacade.base import notices
from opfacade.errors import DroppedWarning, SettingWarning

PROGRAM = """
import os, sys, warnings
warnings.simplefilter("always")
from opfacade import Plan, Target
from opfacade.select.registry import examples
{broken}
os.environ["OPFACADE_JIT_VERBOS"] = "1"
target = Target.parse("sm_90a")
from opfacade import Preference
plan = Plan.select(next(e for e in examples() if e.op == "mla_decode" and e.sinks), target=target)
from tests.support.problems import decode
descriptor, args = decode([6])
plan = Plan.select(descriptor, target=Target.cpu())
plan.run(args)
os.write(1, b"ran")
os._exit(0)
"""


@pytest.mark.parametrize("broken", ["sys.stderr.close()", "sys.stderr = None", "os.close(2)"])
def test_a_fallback_and_a_misspelt_variable_are_told_to_nobody_where_stderr_is_broken(broken):
    env = {**os.environ, "OPFACADE_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(broken=broken)], env=env, capture_output=True, text=True)
    assert done.stdout == "ran", done.stderr


def test_a_filter_that_makes_errors_of_warnings_is_heeded_by_warn_and_not_by_tell():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SettingWarning):
            notices.warn("x", SettingWarning)
        notices.tell("x", SettingWarning)


def test_a_warning_points_at_the_line_that_called(recwarn):
    notices.warn("x", SettingWarning, 1)
    assert recwarn.pop(SettingWarning).filename == __file__


def test_what_is_told_once_is_told_once_a_name(monkeypatch, recwarn):
    monkeypatch.setattr(notices, "_told", {})
    for name in ("a", "b", "a", "b"):
        notices.tell_once(name, name, DroppedWarning)
    assert [str(w.message) for w in recwarn.list] == ["a", "b"]
