"""The progress line: its counts, and when it is written."""

import io
import sys

import pytest

from opfacade import Target, errors, jit
from opfacade.plans.elementwise import MapDescriptor
from opfacade.recipes import neg, shaped, silu
from opfacade.tools.progress import Progress, begun
from opfacade.tools.warmup import warmup


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def stream(monkeypatch):
    def placed(kind, asked=None):
        made = kind()
        monkeypatch.setattr(sys, "stderr", made)
        monkeypatch.delenv("OPFACADE_PROGRESS", raising=False)
        if asked is not None:
            monkeypatch.setenv("OPFACADE_PROGRESS", asked)
        return made

    return placed


def warmed(monkeypatch, built=(), broken=()):
    """Four kernels, without a compiler; some were built before, some fail."""
    problems: list[MapDescriptor] = [f(shaped(4, dtype=d)) for f in (neg, silu) for d in ("f32", "bf16")]

    def build(spec, **facts):
        if facts["label"] in broken:
            raise errors.CompileError("broken")

    seen = []
    monkeypatch.setattr(jit, "is_built_for_plan", lambda spec: seen.append(spec) or len(seen) in built)
    monkeypatch.setattr(jit, "build_for_plan", build)
    return warmup(problems, Target.parse("sm_90a"), jobs=1)


def test_a_terminal_has_one_line_that_is_written_over_and_cleared(stream, monkeypatch):
    told = stream(Terminal)
    warmed(monkeypatch)
    shown = told.getvalue().split("\r")
    assert [line.split(":")[0] for line in shown if line.strip()] == [f"compiling {i} of 4" for i in (1, 2, 3, 4)]
    assert "\n" not in told.getvalue()
    assert shown[-1] == ""
    assert shown[-2].strip() == ""
    assert len(shown[-2]) == len(shown[-3])


def test_what_is_there_is_not_counted_and_failures_are_told(stream, monkeypatch):
    told = stream(io.StringIO, "1")
    steps = warmed(monkeypatch, built=(1, 2))
    assert [step.state for step in steps] == ["cached", "cached", "built", "built"]
    assert [line.split(":")[0] for line in told.getvalue().splitlines()] == ["compiling 1 of 2", "compiling 2 of 2"]
    told = stream(io.StringIO, "1")
    warmed(monkeypatch, broken={steps[0].sku})
    assert f"failed: {steps[0].sku}"[:120] in told.getvalue().splitlines()


@pytest.mark.parametrize(("kind", "asked"), [(io.StringIO, None), (Terminal, "0"), (io.StringIO, "0")])
def test_no_line_where_none_is_wanted(stream, monkeypatch, kind, asked):
    told = stream(kind, asked)
    warmed(monkeypatch)
    assert told.getvalue() == ""


def test_one_kernel_a_callers_report_and_no_stream_have_no_line(stream, monkeypatch):
    told = stream(Terminal)
    assert begun(1) is None
    monkeypatch.setattr(jit, "build_for_plan", lambda spec, **facts: None)
    warmup([f(shaped(4, dtype="f32")) for f in (neg, silu)], Target.parse("sm_90a"), report=lambda step: None)
    assert told.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    assert begun(4) is None


def test_a_closed_stream_ends_no_build():
    stream = Terminal()
    line = Progress(3, stream, True)
    line("build", "a")
    stream.close()
    line("build", "b")
    line.close()
