"""The lines that a change touches."""

from __future__ import annotations

import re
import subprocess

from tests.mutation.operators.population import FOLDERS, ROOT, Line

_FILE, _LINES = re.compile(r"^\+\+\+ b/(.*)$"), re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def lines(base: str) -> set[Line]:
    """The lines that differ from a commit in the working tree, and every line of an untracked file."""
    words = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", base, "--", *FOLDERS]
    found = of(subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    words = ["git", "ls-files", "--others", "--exclude-standard", "--", *FOLDERS]
    for file in subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        found |= {(file, number) for number, _ in enumerate((ROOT / file).read_text().splitlines(), 1)}
    return found


def of(diff: str) -> set[Line]:
    """The lines that a diff without context adds."""
    found: set[Line] = set()
    file = ""
    for line in diff.splitlines():
        named, counted = _FILE.match(line), _LINES.match(line)
        file = named[1] if named else file
        if counted:
            first, count = int(counted[1]), int(counted[2] or 1)
            found |= {(file, number) for number in range(first, first + count)}
    return found
