"""An attention backend of SGLang 0.5.23: `register()` is its plug-in, `--attention-backend opfacade` selects it."""

from __future__ import annotations

from typing import Any

NAME = "opfacade"


def register() -> None:
    """Enter the backend in SGLang's registry and in the choices of its command line. The entry point group
    `sglang.srt.plugins` calls it in every process."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(NAME)(_make)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        ATTENTION_BACKEND_CHOICES.append(NAME)


def _make(runner: Any) -> Any:
    from opfacade.integrations.sglang.backend import OpfacadeAttnBackend

    return OpfacadeAttnBackend(runner)


__all__ = ["NAME", "register"]
