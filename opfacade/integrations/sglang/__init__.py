"""A backend of SGLang 0.5.23 for attention, for sampling and for experts. `register()` is its plug-in.

`--attention-backend opfacade`, `--sampling-backend opfacade` and `--moe-runner-backend opfacade` select them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.integrations.engines import SGLANG

if TYPE_CHECKING:
    from opfacade.integrations.sglang.parts import Runner

NAME = "opfacade"


def register() -> None:
    """Adds the backends to SGLang's registries and to the choices of its command line. The entry point group
    `sglang.srt.plugins` calls it in every process. SGLang's release is checked later, when a backend is created.

    Raises UnsupportedError without SGLang (OPF-I006), or if its release does not have these registries (OPF-I005)."""
    with SGLANG.importing():
        from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, MOE_RUNNER_BACKEND_CHOICES
        from sglang.srt.layers.attention.attention_registry import register_attention_backend
        from sglang.srt.layers.moe.moe_runner import register_moe_runner_core
        from sglang.srt.layers.sampler import register_sampler_backend

        from opfacade.integrations.sglang.experts import OpfacadeRunnerCore, use_runner

    with SGLANG.registering():
        register_attention_backend(NAME)(_make)
        if NAME not in ATTENTION_BACKEND_CHOICES:
            ATTENTION_BACKEND_CHOICES.append(NAME)
        register_sampler_backend(NAME, _make_sampler)
        if NAME not in MOE_RUNNER_BACKEND_CHOICES:
            MOE_RUNNER_BACKEND_CHOICES.append(NAME)
            register_moe_runner_core(NAME, OpfacadeRunnerCore)
        use_runner()


def _make(runner: Runner) -> Any:
    with SGLANG.importing():
        from opfacade.integrations.sglang.backend import OpfacadeAttnBackend

    SGLANG.tell_release()
    return OpfacadeAttnBackend(runner)


def _make_sampler() -> Any:
    with SGLANG.importing():
        from opfacade.integrations.sglang.sampler import OpfacadeSampler

    SGLANG.tell_release()
    return OpfacadeSampler()


__all__ = ["NAME", "register"]
