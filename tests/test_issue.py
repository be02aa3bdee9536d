"""The message of one issue, and of several."""

import pytest

from opfacade.errors import Issue, from_issues


@pytest.mark.parametrize(("count", "lines", "rest"), [(1, 1, None), (10, 10, None), (13, 11, "(and 3 more)")])
def test_ten_issues_are_told(count, lines, rest):
    text = str(from_issues("op", "run", [Issue("OPF-A010", f"t{i}", "x", "y") for i in range(count)]))
    assert len(text.splitlines()) == lines
    assert text.splitlines()[-1].strip() == rest or rest is None
