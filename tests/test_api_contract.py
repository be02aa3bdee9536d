"""The project's API contract, run from where it is kept when it lies beside the checkout."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[2] / "shared" / "contract" / "test_api_contract.py"

if not CONTRACT.is_file():
    pytest.skip(f"no API contract at {CONTRACT}", allow_module_level=True)

_spec = spec_from_file_location("api_contract", CONTRACT)
_module = module_from_spec(_spec)
_spec.loader.exec_module(_module)
globals().update({name: value for name, value in vars(_module).items() if name.startswith("test_")})


def test_the_contract_has_tests():
    assert sum(name.startswith("test_") for name in vars(_module)) >= 5
