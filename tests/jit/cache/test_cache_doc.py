"""docs/cache.md names a test for every failure mode, and every test that it names exists."""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
ROWS = re.findall(r"^\| (C\d+) \|.*\| ([^|]*) \|$", (REPO / "docs/cache.md").read_text(), re.MULTILINE)
ELSEWHERE = {"C46", "C47"}


def test_every_failure_mode_has_a_row():
    assert [number for number, _ in ROWS] == [f"C{n}" for n in range(1, 51)]


def test_every_named_test_exists():
    here = "".join(path.read_text() for path in (REPO / "tests/jit").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", here, re.MULTILINE))
    for number, tests in ROWS:
        named = set(re.findall(r"`(\w+)`", tests))
        assert named or number in ELSEWHERE, number
        assert named <= defined, (number, named - defined)
