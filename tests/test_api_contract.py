"""Runs the project's API contracts, if their folder is next to the checkout."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

CONTRACTS = sorted((Path(__file__).parents[2] / "shared" / "contract").glob("test_*.py"))

if not CONTRACTS:
    pytest.skip("no API contract beside the checkout", allow_module_level=True)


def _tests(path):
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return {f"{name}__{path.stem}": value for name, value in vars(module).items() if name.startswith("test_")}


_FOUND = {path.stem: _tests(path) for path in CONTRACTS}
for _tests_of_one in _FOUND.values():
    globals().update(_tests_of_one)


def test_each_contract_has_tests():
    assert {stem: len(found) for stem, found in _FOUND.items() if len(found) < 3} == {}
