"""Operators create the faults of their names, a seed always draws the same faults, and only a test that passes without a fault
catches it.
"""

import ast
import json
import sys

import pytest

from opfacade.tools import kernel_digests
from tests.mutation import run
from tests.mutation.mutant import Mutant
from tests.mutation.operators import __main__ as command
from tests.mutation.operators import changed, cxx, equivalent, judged, population, python, score, trial
from tests.mutation.operators.fault import faults
from tests.mutation.operators.form import form
from tests.mutation.operators.population import ROOT, drawn, faults_of, files, group_of
from tests.mutation.operators.reproduced import SAME, how


def made(text, of=python):
    return {" ".join(fault.planted(text).split()) for fault in faults("f", text, of.changes(text))}


PYTHON = [
    ("def f(a, b):\n    return a < b", "def f(a, b): return a <= b"),
    ("def f(a, b):\n    return a < b", "def f(a, b): return a + 1 < b"),
    ("def f(a, b):\n    return a - b", "def f(a, b): return a"),
    ("def f(a, b):\n    return a - b", "def f(a, b): return (b - a)"),
    ("def f(a, b):\n    return -(-a // b)", "def f(a, b): return (a // b)"),
    ("def f(a, b):\n    return a and b", "def f(a, b): return (a or b)"),
    ("def f(a, b):\n    return a and b", "def f(a, b): return b"),
    ("def f(a):\n    if a:\n        g()\n    else:\n        h()", "def f(a): if a: g()"),
    ("def f(a):\n    if a:\n        g()", "def f(a): if not a: g()"),
    ("def f(a):\n    if a:\n        g()", "def f(a): if False: g()"),
    ("def f(a):\n    g(a)\n    return 2", "def f(a): pass return 2"),
    ("def f(a):\n    return 2", "def f(a): return 3"),
    ("def f(a, b):\n    return g(a, b)", "def f(a, b): return g(b, a)"),
    ("def f(a, b):\n    return g(a, k=b)", "def f(a, b): return g(a)"),
    ("def f(a, b):\n    return max(a, 0)", "def f(a, b): return a"),
    ("def f(a, b):\n    return a[1:b]", "def f(a, b): return a[1:]"),
    ("def f(a, b):\n    return a[1:b]", "def f(a, b): return a[1:b - 1]"),
    ("def f(a, b):\n    return a if b else 1", "def f(a, b): return a"),
    ("def f(a, b):\n    return [x for x in a if x]", "def f(a, b): return [x for x in a ]"),
    ("def f(a, b):\n    c = a\n    return c", "def f(a, b): c = a return b"),
    ("def f(a):\n    return {'x': a, 'y': 1}", "def f(a): return {'y': 1}"),
    ("def f(a):\n    return (a, 1)", "def f(a): return (1,)"),
    ("def f(a):\n    return a.one + a.two", "def f(a): return a.two + a.two"),
    ("def f(a):\n    with g():\n        h()", "def f(a): if True: h()"),
    ("def f(a):\n    try:\n        h()\n    except (A, B):\n        g()", "def f(a): try: h() except (B,): g()"),
    ("def f(a):\n    a += 1", "def f(a): a = 1"),
    ("def f():\n    return 'cvt.rn.satfinite.x'", "def f(): return 'cvt.rz.satfinite.x'"),
]
DEVICE = [
    ("void f() { if (a < b) g(); }", "void f() { if (a <= b) g(); }"),
    ("void f() { if (a < b) g(); }", "void f() { g(); }"),
    ("void f() { if (a < b) g(); }", "void f() { if (false) g(); }"),
    ("void f() { if (a) g(); else h(); }", "void f() { if (a) g(); }"),
    ("void f() { x = a + b * c; }", "void f() { x = a; }"),
    ("void f() { x = a + b * c; }", "void f() { x = a + b; }"),
    ("void f() { x = a + b * c; }", "void f() { x = a - b * c; }"),
    ("void f() { x = a ? b : c; }", "void f() { x = c; }"),
    ("void f() { x = a && b; }", "void f() { x = a || b; }"),
    ("void f() { g(a, b); }", "void f() { g(b, a); }"),
    ("void f() { __syncthreads(); h(); }", "void f() { ; h(); }"),
    ("void f() { x = p[i]; }", "void f() { x = p[(i + 1)]; }"),
    ("void f() { x = 16; }", "void f() { x = 17; }"),
    ("void f() { x = 33.f; }", "void f() { x = 66.0f; }"),
    ("void f() { x += a; }", "void f() { x = a; }"),
    ("void f() { x = Tile<C>::rank() * kPart; }", "void f() { x = Tile<C>::rank(); }"),
    ("void f() { x = min(a, b); }", "void f() { x = max(a, b); }"),
    ('void f() { asm("max.NaN.f32 %0;"); }', 'void f() { asm("max.f32 %0;"); }'),
    ("void f() { x = __fmaf_rn(a, b, c); }", "void f() { x = __fmaf_rz(a, b, c); }"),
    ("{% if wide %}\na\n{% else %}\nb\n{% endif %}", "{% if not (wide) %} a {% else %} b {% endif %}"),
    ("{% if wide %}\na\n{% else %}\nb\n{% endif %}", "{% if wide %} a {% endif %}"),
]


@pytest.mark.parametrize(("text", "fault"), PYTHON, ids=range(len(PYTHON)))
def test_an_operator_makes_a_fault_of_python(text, fault):
    assert fault in made(text)


@pytest.mark.parametrize(("text", "fault"), DEVICE, ids=range(len(DEVICE)))
def test_an_operator_makes_a_fault_of_device_code(text, fault):
    assert fault in made(text, cxx)


@pytest.mark.parametrize("word", ["annotation", "text", "comment"])
def test_what_nobody_computes_with_has_no_fault(word):
    assert not [
        fault for fault in made('def f(a: annotation[0]):\n    """text < 1"""\n    return a  # comment') if word not in fault
    ]


def test_faults_of_real_files_are_of_one_change_and_compile():
    """A file with most forms; returns some of its faults."""
    text, own = (ROOT / "opfacade/plans/_norm_program.py").read_text(), faults_of("opfacade/plans/_norm_program.py")
    assert len({fault.digest for fault in own}) == len(own) > 300
    before = ast.dump(ast.parse(text))
    assert all(ast.dump(ast.parse(fault.planted(text))) != before for fault in own[:: len(own) // 20])


def test_a_fault_keeps_its_digest_where_its_line_moves_and_not_where_it_changes():
    text = "def f(a, b):\n    return a < b\n"
    digests = {fault.digest for fault in faults("f", text, python.changes(text))}
    moved, other = f"X = 1\n\n\n{text}", text.replace("<", ">")
    assert digests <= {fault.digest for fault in faults("f", moved, python.changes(moved))}
    assert not digests & {fault.digest for fault in faults("f", other, python.changes(other)) if fault.line == 2}


def test_a_seed_draws_its_lines_whatever_stands_around_them(monkeypatch, tmp_path):
    some = [file for file in files() if group_of(file) == "opfacade/base"]
    before = [fault.digest for fault in drawn(5, 6, some)]
    assert before == [fault.digest for fault in drawn(5, 6, some)] != [fault.digest for fault in drawn(6, 6, some)]
    assert len(set(before)) == 6
    for file in some:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("\n\n" + (ROOT / file).read_text())
    monkeypatch.setattr(population, "ROOT", tmp_path)
    monkeypatch.setattr(population, "faults_of", lambda file: faults_of(file, tmp_path))
    assert before == [fault.digest for fault in drawn(5, 6, some)]


def test_only_lines_of_a_change_are_drawn():
    lines = {("opfacade/core/checks.py", number) for number in range(1, 60)}
    found = list(drawn(1, 5, ["opfacade/core/checks.py"], lines))
    assert found
    assert {(fault.file, fault.line) for fault in found} <= lines


def test_lines_of_a_difference_are_those_that_it_adds():
    diff = "--- a/x.py\n+++ b/x.py\n@@ -3 +3,2 @@ def f():\n-a\n+b\n+c\n@@ -9,2 +10,0 @@\n-d\n"
    diff += "--- a/y\n+++ b/y\n@@ -1 +1 @@\n-e\n+f\n"
    assert changed.of(diff) == {("x.py", 3), ("x.py", 4), ("y", 1)}


def test_a_group_is_a_package_or_a_family_of_kernels():
    found = ("opfacade/plan.py", "opfacade/jit/cache/store.py", "kernels/mla/math.cuh", "csrc/mla/mla_decode.cu.jinja")
    assert [group_of(file) for file in found] == ["opfacade", "opfacade/jit", "kernels/mla", "kernels/mla"]


JUDGES = [
    ("opfacade/jit/sass/hazards.py", "tests/jit/sass/test_sass.py"),
    ("opfacade/select/pins.py", "tests/select/test_locks.py"),
    ("kernels/elementwise/map.cuh", "tests/families/elementwise/test_map_paths.py"),
    ("opfacade/plans/quantize.py", "tests/families/quantize/test_blocks.py"),
]


@pytest.mark.parametrize(("file", "test"), JUDGES)
def test_what_judges_a_line_is_derived(file, test):
    found = judged.tests_of(file, 20, gpu=False)
    assert test in found
    assert len(found) <= judged.MOST


def ended(monkeypatch, *answers):
    """A trial in which pytest ends with these results, one after another, and the fault in question."""
    told = iter(answers)
    own = trial.Trial(run.Place(ROOT, "host"), 9.0)
    monkeypatch.setattr(own, "_ended", lambda *_: next(told))
    return own.row(faults_of("opfacade/issue.py")[0], "tests/a.py", 99.0)


FAILED = (1, "FAILED tests/a.py::b - assert 1 == 2")
ENDINGS = [
    ([FAILED, (0, "")], trial.CAUGHT, "tests/a.py::b"),
    ([FAILED, FAILED], trial.UNDECIDED, "tests/a.py::b"),
    ([(0, "3 passed")], trial.SURVIVED, ""),
    ([(2, "ERROR tests/a.py - ImportError: x")], trial.REFUSED, ""),
    ([(1, f"/tmp/x.cuh:6:5: error: no such name\n{FAILED[1]}")], trial.REFUSED, ""),
    ([(None, ""), (0, "")], trial.CAUGHT, "no end within the time"),
    ([(None, ""), (None, "")], trial.UNDECIDED, ""),
    ([(5, "no tests ran")], trial.UNDECIDED, "exit 5"),
    ([(-11, "")], trial.CAUGHT, "exit -11"),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "outcome", "by"), ENDINGS, ids=range(len(ENDINGS)))
def test_a_fault_is_caught_by_a_test_that_passes_without_it(monkeypatch, answers, outcome, by):
    row = ended(monkeypatch, *answers)
    assert (row.outcome, row.by) == (outcome, by)


def test_a_score_counts_what_a_test_could_see(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_digests, "stamp", dict)
    rows = [ended(monkeypatch, *answers) for answers, _, _ in ENDINGS]
    assert score.words(row.told() for row in rows) == "3 of 4 caught; 2 refused, 3 undecided"
    score.record([row.told() for row in rows], 7, tmp_path / "o.json", "0123abc")
    score.record([rows[0].told()], 8, tmp_path / "o.json", "0123abc")
    found = score.known(tmp_path / "o.json")
    assert list(found) == ["opfacade"]
    assert (found["opfacade"]["seed"], len(found["opfacade"]["mutants"])) == (8, 1)


def test_the_row_that_says_most_of_a_fault_counts(tmp_path):
    places = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for place, outcomes in zip(
        places, ({"f": "survived", "g": "undecided"}, {"f": "caught", "g": "undecided", "h": "refused"}), strict=True
    ):
        rows = [json.dumps({"digest": digest, "outcome": outcome, "at": place.stem}) for digest, outcome in outcomes.items()]
        place.write_text("\n".join(rows) + "\n")
    for order in (places, places[::-1]):
        found = {row["digest"]: (row["outcome"], row["at"]) for row in score.joined(order)}
        assert found == {"f": ("caught", "b"), "g": ("undecided", order[1].stem), "h": ("refused", "b")}


NO_FAULT = ("Place = tuple[str, int]", "Dims: TypeAlias = int | None", "import a", "def f(a: int) -> int: ...")


@pytest.mark.parametrize("text", NO_FAULT)
def test_a_name_of_a_type_has_no_fault(text):
    assert made(text) <= {"Place = list(tuple[str, int])"}
    assert made("Names = (a, b)")


def test_the_test_that_caught_a_fault_is_selected_by_name():
    assert trial.selected("tests/a.py::T::b[c d]") == "tests/a.py -k b"
    assert trial.selected("tests/a.py tests/c.py") == "tests/a.py tests/c.py"


def test_every_equivalent_fault_has_a_reason():
    assert all(len(digest) == 16 and len(why) > 20 for digest, why in equivalent.reasons().items())


FORMS = [
    ("return a < b", "return a <= b", "comparison"),
    ("return a and b", "return b", "removed"),
    ("if a: g()", "if False: g()", "fixed"),
    ("x = 12", "x = 13", "number"),
    ("x = y[a]", "x = y[a + 1]", "off by one"),
    ("if a:", "if not a:", "inverted"),
    ("x = one", "x = two", "name"),
    ("f(a, b)", "f(b, a)", "exchanged"),
    ("x = a", "x = g(a, h)", "added"),
    ("x = a * b + c", "x = pow(a, 3)", "rewritten"),
]


@pytest.mark.parametrize(("before", "after", "kind"), FORMS, ids=[kind for *_, kind in FORMS])
def test_a_change_has_its_form(before, after, kind):
    assert form(before, 0, len(before), after).kind == kind


def test_a_listed_fault_that_an_operator_makes_is_told():
    text = "self.length(request) > tables.max_len"
    assert how(Mutant("m", "opfacade/validation/host.py", ((text, text + " + 1"),))) == SAME


def test_the_command_lists_what_it_would_run(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["operators", "--seed", "3", "--count", "2", "--group", "opfacade/base", "--list"])
    assert command.main() == 0
    assert [line.split()[1].startswith("opfacade/base/") for line in capsys.readouterr().out.splitlines()] == [True, True]


def test_a_sample_of_known_faults_is_never_empty(monkeypatch):
    monkeypatch.setattr(score, "known", dict)
    with pytest.raises(SystemExit, match="expected 2 recorded faults"):
        command._known(1, 2)


def test_faults_that_no_time_is_left_for_are_told(monkeypatch, capsys):
    words = ["--seed", "3", "--count", "2", "--group", "opfacade/base", "--seconds", "1e-9"]
    monkeypatch.setattr(sys, "argv", ["operators", *words])
    assert command.main() == 0
    assert "0 of 0 caught; 2 not tried in the time" in capsys.readouterr().out
