"""vLLM's method for experts without quantisation: each layer is one plan, after vLLM's own router.

The method has no kernel object of vLLM (`moe_kernel` is None), so vLLM's runner applies the shared experts, dispatches rows
between data-parallel ranks, and reduces over ranks, as for every method without a kernel object. Weights keep the layout in
which vLLM loads them and are read in place, so weights that are loaded or moved later are used from the next call on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from vllm import envs
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from opfacade import Target
from opfacade.integrations.expert_layer import PART, Form, Sizes, Weights, local_ids, refuse_without_kernel, run
from opfacade.integrations.refusal import refuse
from opfacade.integrations.support import here
from opfacade.integrations.tensors import name_of
from opfacade.integrations.vllm.expert_facts import ExpertsLayer, MoeConfig

WAY = "vllm"
_HINT = "Run this model without register_experts()."
_PLAIN: Mapping[MoEActivation, Form] = MappingProxyType({
    MoEActivation.SILU: Form(), MoEActivation.GELU: Form("gelu"), MoEActivation.GELU_TANH: Form("gelu_tanh"),
    MoEActivation.SILU_NO_MUL: Form(gated=False), MoEActivation.GELU_NO_MUL: Form("gelu", gated=False),
    MoEActivation.GELU_TANH_NO_MUL: Form("gelu_tanh", gated=False), MoEActivation.RELU2_NO_MUL: Form("relu2", gated=False),
    MoEActivation.SWIGLUOAI: Form(interleaved=True), MoEActivation.SWIGLUOAI_UNINTERLEAVE: Form(),
})  # fmt: skip
_LIMITED = (MoEActivation.SILU, MoEActivation.SWIGLUOAI, MoEActivation.SWIGLUOAI_UNINTERLEAVE)


class OpfacadeFusedMoEMethod(UnquantizedFusedMoEMethod):  # type: ignore[misc]
    """Raises UnsupportedError (OPF-I001) when a layer is created that no plan supports."""

    def __init__(self, moe: MoeConfig) -> None:
        _refuse_config(moe)
        FusedMoEMethodBase.__init__(self, moe)  # the parent class's method would choose a vLLM kernel
        self.unquantized_backend, self.experts_cls = UnquantizedMoeBackend.OOT, None
        self.supports_pre_processed_weights = True
        self.form = Form()

    @property
    def is_monolithic(self) -> bool:
        """False, because vLLM's router chooses the experts."""
        return False

    def create_weights(
        self, layer: ExpertsLayer, num_experts: int, hidden_size: int, intermediate_size_per_partition: int,
        params_dtype: torch.dtype, **extra_weight_attrs: object,
    ) -> None:  # fmt: skip
        self.form = _form(self.moe, layer)
        dtype = name_of(params_dtype)
        if dtype is None or params_dtype != self.moe.in_dtype:
            expected = f"f16, bf16 or f32, and {self.moe.in_dtype} as the rows"
            refuse(WAY, "OPF-I001", "params_dtype", expected=expected, got=params_dtype, hint=_HINT, part=PART)
        bias = dtype if self.moe.has_bias else None
        top_k = self.moe.experts_per_token
        sizes = Sizes(num_experts, top_k, hidden_size, intermediate_size_per_partition, dtype, bias)
        on_cpu = torch.device(self.moe.device).type == "cpu"
        refuse_without_kernel(WAY, sizes, self.form, Target.cpu() if on_cpu else here())
        super().create_weights(
            layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype, **extra_weight_attrs
        )

    def process_weights_after_loading(self, layer: ExpertsLayer) -> None:
        """Does nothing, because plans read weights in the layout in which vLLM loads them."""

    def apply(
        self, layer: ExpertsLayer, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, shared_experts: object = None,
        shared_experts_input: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The sum over this rank's experts, [rows, hidden] in the dtype of x, without the shared experts, which vLLM's runner
        applies.

        x [rows, hidden]; topk_weights and topk_ids [rows, top_k], global ids; -1: padding."""
        of = Weights(layer.w13_weight, layer.w2_weight, getattr(layer, "w13_bias", None), getattr(layer, "w2_bias", None))
        return run(WAY, self.form, x, local_ids(topk_ids, layer.expert_map), topk_weights, of)


def _refuse_config(moe: MoeConfig) -> None:
    """Settings for which vLLM would run other code than this method."""
    parallel = moe.moe_parallel_config
    sent_by = parallel.all2all_backend if parallel.use_all2all_kernels else "allgather_reducescatter"
    facts = {
        "moe_backend": (moe.moe_backend, "auto"), "is_lora_enabled": (moe.is_lora_enabled, False),
        "all2all_backend": (sent_by, "allgather_reducescatter"), "VLLM_BATCH_INVARIANT": (envs.VLLM_BATCH_INVARIANT, False),
    }  # fmt: skip
    for name, (got, expected) in facts.items():
        if got != expected:
            refuse(WAY, "OPF-I001", name, expected=str(expected), got=got, hint=_HINT, part=PART)


def _form(moe: MoeConfig, layer: ExpertsLayer) -> Form:
    kind, limit = moe.activation, _first(layer, moe, "swiglu_limit")
    found = _PLAIN.get(kind)
    if found is None:
        expected = ", ".join(one.value for one in _PLAIN)
        refuse(WAY, "OPF-I001", "activation", expected=f"one of {expected}", got=kind.value, hint=_HINT, part=PART)
    if limit is not None and kind not in _LIMITED:
        refuse(WAY, "OPF-I001", "swiglu_limit", expected=f"None with {kind.value}", got=limit, hint=_HINT, part=PART)
    alpha, beta = _first(layer, moe, "swiglu_alpha"), _first(layer, moe, "swiglu_beta")
    if kind is MoEActivation.SWIGLUOAI:  # vLLM has its parameters as constants in the function
        limit, alpha, beta = (
            7.0 if limit is None else limit, 1.702 if alpha is None else alpha, 1.0 if beta is None else beta
        )  # fmt: skip
    elif kind is not MoEActivation.SWIGLUOAI_UNINTERLEAVE:
        alpha, beta = None, None
    elif limit is None:
        refuse(WAY, "OPF-I001", "swiglu_limit", expected="a number", got=None, hint=_HINT, part=PART)
    return found._replace(limit=limit, alpha=alpha, beta=beta or 0.0, at_input=layer.apply_router_weight_on_input)


def _first(layer: ExpertsLayer, moe: MoeConfig, name: str) -> float | None:
    """A number from the layer, otherwise from its configuration, as in vLLM's own activation."""
    given = getattr(layer, name, None)
    found = getattr(moe, name) if given is None else given
    return None if found is None else float(found)
