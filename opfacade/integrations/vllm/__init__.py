"""An attention backend of vLLM 0.33: `register()` is its plug-in, `--attention-backend OPFACADE` selects it."""

from __future__ import annotations

NAME = "OPFACADE"
PATH = "opfacade.integrations.vllm.backend.OpfacadeBackend"


def register() -> None:
    """Enter the backend in vLLM's registry. The entry point group `vllm.general_plugins` calls it in every process, and may
    call it again."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if NAME not in AttentionBackendEnum.__members__:
        register_backend(NAME, PATH)


__all__ = ["NAME", "PATH", "register"]
