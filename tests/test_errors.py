"""The exception tree: as documented, with builtin base classes, and picklable."""

import builtins
import inspect
import pickle
import re

import pytest

from opfacade import errors
from opfacade.errors import MAX_ISSUES, Issue, OpfacadeError, from_issues

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, OpfacadeError)]


def drawn():
    """{class: (parent, builtin or None)} read from the tree in the module's docstring."""
    found, stack = {}, {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ((?:│  |   )*)[├└]─ (.*)$", line)
        if line.strip() == "OpfacadeError":
            found["OpfacadeError"], stack[0] = (None, None), "OpfacadeError"
        elif match:
            depth = len(match[1]) // 3 + 1
            names = re.match(r"\w+( \(\w+\))?( · \w+( \(\w+\))?)*", match[2])[0]
            for name, _, builtin in re.findall(r"(\w+)( \((\w+)\))?", names):
                found[name], stack[depth] = (stack[depth - 1], builtin or None), name
    return found


def test_the_drawn_tree_is_the_classes():
    assert set(drawn()) == {c.__name__ for c in CLASSES}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_parents_are_as_drawn(kind):
    parent, builtin = drawn()[kind.__name__]
    assert parent is None or kind.__bases__[0] is getattr(errors, parent)
    assert [b.__name__ for b in kind.__bases__ if b.__module__ == "builtins" and b is not Exception] == (
        [builtin] if builtin else []
    )
    assert builtin is None or issubclass(kind, getattr(builtins, builtin))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_every_error_survives_pickling(kind):
    issue = Issue("OPF-X001", "q", "a", "b", "c", kind.__name__)
    error = kind("message [OPF-X001]", code="OPF-X001", op="op", stage="run", issues=[issue], hint="hint")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "message [OPF-X001]"
    assert (again.code, again.op, again.stage, again.issues, again.hint) == ("OPF-X001", "op", "run", (issue,), "hint")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_an_error_made_from_issues_tells_all(kind):
    issues = [
        Issue("OPF-A023", "kv_indptr", "torch.int32", "torch.int64", "Use x.", kind.__name__),
        Issue("OPF-A024", "q", "1", "2"),
    ]
    error = from_issues("paged_decode", "run", issues)
    assert type(error) is kind
    assert error.issues == tuple(issues)
    wanted = "paged_decode.run: kv_indptr expected torch.int32, got torch.int64. Use x. [OPF-A023]\n"
    wanted += "  q expected 1, got 2. [OPF-A024]"
    assert (error.code, error.hint, str(error)) == ("OPF-A023", "Use x.", wanted)


def test_issues_are_capped():
    issues = [Issue("OPF-A011", f"x{i}", "a", "b") for i in range(MAX_ISSUES + 5)]
    error = from_issues("op", "run", issues)
    assert len(error.issues) == MAX_ISSUES == 20
    assert "15 more" in str(error)


def test_a_missing_hint_leaves_no_gap():
    assert str(Issue("OPF-A001", "q", "a", "b")) == "q expected a, got b. [OPF-A001]"


def test_a_cache_error_keeps_errno_and_filename():
    error = errors.CacheError("full [OPF-K001]", code="OPF-K001")
    assert error.errno is None
    error.errno, error.filename = 28, "/tmp/x"
    assert (error.errno, error.filename) == (28, "/tmp/x")


@pytest.mark.parametrize("kind", [c for c in CLASSES if issubclass(c, errors.FileError)], ids=lambda c: c.__name__)
def test_an_error_of_a_file_keeps_errno_and_filename_through_pickle(kind):
    error = kind.of("full. Free some. [OPF-J020]", OSError(28, "No space left on device", "/tmp/x"))
    again = pickle.loads(pickle.dumps(error))
    for each in (error, again):
        assert (type(each), each.errno, each.strerror, each.filename) == (kind, 28, "No space left on device", "/tmp/x")
        assert str(each) == "full. Free some. [OPF-J020]"


def test_every_kind_an_issue_names_in_the_code_exists():
    """from_issues looks the class up by name; a misspelt one would only show when a user errs."""
    from pathlib import Path

    text = "".join(p.read_text() for p in Path(errors.__file__).parent.rglob("*.py"))
    named = set(re.findall(r'kind="([A-Z]\w+)"', text))
    assert named
    assert named <= {c.__name__ for c in CLASSES}


def test_a_code_is_read_from_a_message_that_has_one():
    error = errors.ToolchainError("no compiler. Install one: pip install x [OPF-J010]\n  log [tail]")
    assert (error.code, error.stage, error.op) == ("OPF-J010", "compile", "")
    assert errors.CacheError("nothing [OPF-x]").code == ""


def test_what_layers_without_an_op_raise_is_told_with_the_op_of_the_plan(monkeypatch, tmp_path):
    from opfacade import Plan, Target
    from opfacade.select.registry import examples

    monkeypatch.setenv("OPFACADE_CXX", "no-such-compiler")
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    descriptor = examples()[0]
    with pytest.raises(errors.ToolchainError) as caught:
        Plan.select(descriptor, target=Target.parse("sm_80")).compile()
    assert (caught.value.code, caught.value.op, caught.value.stage) == ("OPF-J010", descriptor.op, "compile")
