"""An attention backend of vLLM 0.33: `register()` is its plug-in, `--attention-backend OPFACADE` selects it.

`register_sampler()` makes its runners draw tokens with opfacade, and `register_experts()` runs its mixtures of experts; call
them from your own plug-in."""

from __future__ import annotations

from opfacade.integrations.engines import VLLM
from opfacade.integrations.refusal import refuse

NAME = "OPFACADE"
PATH = "opfacade.integrations.vllm.backend.OpfacadeBackend"


def register() -> None:
    """Adds the backend to vLLM's registry. The entry point group `vllm.general_plugins` calls it in every process, possibly
    several times. vLLM's release is checked later, when the backend is selected.

    Raises UnsupportedError without vLLM (OPF-I006), or if its release does not have this registry (OPF-I005)."""
    with VLLM.importing():
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    with VLLM.registering():
        if NAME not in AttentionBackendEnum.__members__:
            register_backend(NAME, PATH)


def register_sampler() -> None:
    """Replaces the samplers of both of vLLM's model runners in this process: `gpu_model_runner`, and `gpu.model_runner`, which
    is the default where Triton is installed. vLLM has no registry of samplers, so this replaces a name that a runner reads when
    it is created. Call it in the worker processes before that.

    Raises as `register` does. An untested vLLM release gives a ReleaseWarning."""
    with VLLM.importing():
        from vllm.v1.worker import gpu_model_runner
        from vllm.v1.worker.gpu import model_runner

        from opfacade.integrations.vllm.sampler import OpfacadeSampler
        from opfacade.integrations.vllm.second_sampler import OpfacadeRunnerSampler

    VLLM.tell_release()
    own = ((gpu_model_runner, OpfacadeSampler), (model_runner, OpfacadeRunnerSampler))
    with VLLM.registering():
        for runner, _ in own:  # setting a name that no runner reads would have no effect
            runner.Sampler  # noqa: B018
    for runner, sampler in own:
        runner.Sampler = sampler


def register_experts() -> None:
    """Makes expert layers without quantisation, if they are created after this call, run as plans: `OpfacadeFusedMoEMethod`
    replaces `UnquantizedFusedMoEMethod` in vLLM's registry of custom ops. Call it in the worker processes, before the model is
    loaded; repeated calls have no effect.

    Raises as `register` does, and UnsupportedError (OPF-I001) if another plug-in has replaced that method. An untested vLLM
    release gives a ReleaseWarning."""
    with VLLM.importing():
        from vllm.model_executor.custom_op import op_registry_oot
        from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

        from opfacade.integrations.vllm.experts import OpfacadeFusedMoEMethod

    VLLM.tell_release()
    found = op_registry_oot.get(UnquantizedFusedMoEMethod.__name__, OpfacadeFusedMoEMethod)
    if found is not OpfacadeFusedMoEMethod:
        refuse("vllm", "OPF-I001", "UnquantizedFusedMoEMethod", expected="not replaced", got=found.__name__, part="experts")
    with VLLM.registering():
        if UnquantizedFusedMoEMethod.__name__ not in op_registry_oot:
            UnquantizedFusedMoEMethod.register_oot(OpfacadeFusedMoEMethod)


__all__ = ["NAME", "PATH", "register", "register_experts", "register_sampler"]
