import pytest


@pytest.fixture
def registered():
    """The names that the installed transformers permits, entered in its tables."""
    from opfacade.integrations.transformers import register

    return register()
