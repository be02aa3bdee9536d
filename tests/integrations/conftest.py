"""Tests marked `transformers` are skipped, with the reason, where a transformers that the adapter knows is not installed."""

import pytest


def _missing() -> str:
    try:
        import transformers
    except ImportError:
        return "need transformers: pip install 'opfacade[transformers]'"
    from opfacade.integrations.transformers.releases import parse

    return "" if parse(transformers.__version__) >= (5, 17) else f"need transformers 5.17 or later, not {transformers.__version__}"


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("transformers")]
    reason = _missing() if marked else ""
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def registered():
    from opfacade.integrations.transformers import register

    return register()
