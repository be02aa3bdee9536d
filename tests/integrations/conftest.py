from types import SimpleNamespace

import pytest

from tests.integrations import vllm_step
from tests.integrations.fakes import put


@pytest.fixture
def registered():
    """Adds the names that the installed transformers permits to its tables."""
    from opfacade.integrations.transformers import register

    return register()


@pytest.fixture
def vllm(monkeypatch):
    """The classes of our backend, where vLLM's modules are fakes."""
    put(monkeypatch, **vllm_step.fakes())
    from opfacade.integrations.vllm import backend, impl, metadata

    return SimpleNamespace(backend=backend.OpfacadeBackend, impl=impl.OpfacadeImpl, builder=metadata.OpfacadeMetadataBuilder)
