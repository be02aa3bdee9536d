"""pytest plugin: `pytest -p bench.suite_part --part 2/3` runs the second third of all tests, in their order."""

from __future__ import annotations

import re

import pytest


def cut(text: str) -> tuple[int, int]:
    """(number of the part, from 1; number of parts)."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    which, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= which <= count:
        raise ValueError(f"--part expected I/N with I from 1 to N, got {text!r}")
    return which, count


def bounds(which: int, count: int, tests: int) -> tuple[int, int]:
    return tests * (which - 1) // count, tests * which // count


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=cut, default=(1, 1))


@pytest.hookimpl(trylast=True)  # after other plugins have deselected by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, end = bounds(*config.getoption("--part"), len(items))
    config.hook.pytest_deselected(items=items[:first] + items[end:])
    items[:] = items[first:end]
