"""An attention backend of vLLM 0.33: `register()` is its plug-in, `--attention-backend OPFACADE` selects it.

`register_sampler()` has its runner draw tokens with opfacade; a plug-in of the user's own calls it.
"""

from __future__ import annotations

from opfacade.integrations.engines import VLLM

NAME = "OPFACADE"
PATH = "opfacade.integrations.vllm.backend.OpfacadeBackend"


def register() -> None:
    """Enter the backend in vLLM's registry. The entry point group `vllm.general_plugins` calls it in every process, and may
    call it again; it says nothing of vLLM's release, which counts where the backend is selected.

    Raises UnsupportedError without vLLM (OPF-I006), and where its release has no such registry (OPF-I005).
    """
    with VLLM.importing():
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    with VLLM.registering():
        if NAME not in AttentionBackendEnum.__members__:
            register_backend(NAME, PATH)


def register_sampler() -> None:
    """Replace the sampler of vLLM's model runner in this process. vLLM has no registry of samplers, so this sets the name that
    the runner reads when it is made; it must be called in the processes of the workers, before that.

    Raises as `register` does. A vLLM that was not tested gives a ReleaseWarning.
    """
    with VLLM.importing():
        from vllm.v1.worker import gpu_model_runner

        from opfacade.integrations.vllm.sampler import OpfacadeSampler

    VLLM.tell_release()
    gpu_model_runner.Sampler = OpfacadeSampler


__all__ = ["NAME", "PATH", "register", "register_sampler"]
