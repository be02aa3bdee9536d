"""SGLang's runner for experts without quantisation: each layer is one plan, after SGLang's own router and dispatcher.

The input is the result of the standard dispatcher: ids of this rank's experts, and -1 for experts of other ranks and for
padding. Weights are read in place, so weights that are loaded or moved later are used from the next call on."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.moe.moe_runner.base import DispatchMoeRunnerCore
from sglang.srt.layers.moe.moe_runner.runner import MoeRunner
from sglang.srt.layers.moe.moe_runner.triton import TritonMoeQuantInfo
from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput
from sglang.srt.layers.moe.utils import get_moe_a2a_backend, get_moe_runner_backend, resolve_moe_runner_backend
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

from opfacade import Target
from opfacade.integrations.engines import SGLANG
from opfacade.integrations.expert_layer import PART, Form, Sizes, Weights, local_ids, refuse_without_kernel, run
from opfacade.integrations.refusal import refuse
from opfacade.integrations.sglang.expert_facts import Create, Dispatched, Method, RunnerConfig, WeightsInfo
from opfacade.integrations.support import here
from opfacade.integrations.tensors import name_of

WAY, NAME = "sglang", "opfacade"
_HINT = "Choose another --moe-runner-backend for it."
_GATED = {"silu": Form(), "gelu": Form("gelu"), "gelu_tanh": Form("gelu_tanh")}
_PLAIN = {"silu": Form(gated=False), "gelu": Form("gelu", False), "relu2": Form("relu2", False)}
# Fields for quantisation, which must have their default values.
_UNUSED = (
    "use_mxfp8", "use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "block_shape", "fuse_swiglu_interleaved",
)  # fmt: skip


class OpfacadeRunnerCore(DispatchMoeRunnerCore):  # type: ignore[misc]
    """Raises UnsupportedError (OPF-I001) when a layer is created that no plan supports."""

    def __init__(self, config: RunnerConfig) -> None:
        super().__init__(config)
        SGLANG.tell_release()
        self.form = _form(config)
        _refuse_sizes(config, self.form)

    @property
    def runner_backend(self) -> Any:
        return resolve_moe_runner_backend(NAME)

    def run_from_dispatch(
        self, dispatch_output: Dispatched, quant_info: WeightsInfo, runner_config: RunnerConfig, hooks: object = None
    ) -> Any:
        """Returns the sum over this rank's experts times routed_scaling_factor, [rows, hidden]. Does not overwrite
        hidden_states.

        dispatch_output: the result of the standard dispatcher, with 16-bit or f32 rows. quant_info: TritonMoeQuantInfo without
        scales."""
        if hooks is not None:
            refuse(WAY, "OPF-I001", "hooks", expected="None", got="hooks of LoRA", hint=_HINT, part=PART)
        _refuse_quantised(quant_info)
        chosen = dispatch_output.topk_output
        weights, scale = chosen.topk_weights, runner_config.routed_scaling_factor or 1.0
        if not self.form.at_input:
            weights = weights.float() * scale if scale != 1 else weights
        of = Weights(quant_info.w13_weight, quant_info.w2_weight, quant_info.b13, quant_info.b2)
        out = run(WAY, self.form, dispatch_output.hidden_states, local_ids(chosen.topk_ids, None), weights, of)
        if self.form.at_input and scale != 1:
            out.mul_(scale)
        return StandardCombineInput(hidden_states=out)


def _refuse_quantised(quant_info: object) -> None:
    if not isinstance(quant_info, TritonMoeQuantInfo):
        got = type(quant_info).__name__
        refuse(WAY, "OPF-I001", "quant_info", expected="weights without quantisation", got=got, hint=_HINT, part=PART)
    for name in _UNUSED:
        if getattr(quant_info, name) not in (None, False):
            refuse(WAY, "OPF-I001", name, expected="None", got="weights in another form", hint=_HINT, part=PART)


def choose_runner(create: Create) -> Create:
    """Replaces UnquantizedFusedMoEMethod.create_moe_runner, which knows only SGLang's own runners."""

    def create_moe_runner(self: Method, layer: torch.nn.Module, moe_runner_config: RunnerConfig) -> None:
        backend = get_moe_runner_backend()
        if backend.value != NAME:
            create(self, layer, moe_runner_config)
            return
        if not get_moe_a2a_backend().is_none():
            got = get_moe_a2a_backend().value
            refuse(WAY, "OPF-I001", "moe_a2a_backend", expected="none", got=got, hint=_HINT, part=PART)
        self.moe_runner_config = moe_runner_config
        self.runner = MoeRunner(backend, moe_runner_config)

    create_moe_runner.own = create  # type: ignore[attr-defined]
    return create_moe_runner


def use_runner() -> None:
    """Replaces `create_moe_runner` of SGLang's UnquantizedFusedMoEMethod; a second call has no effect."""
    create = UnquantizedFusedMoEMethod.create_moe_runner
    if not hasattr(create, "own"):
        UnquantizedFusedMoEMethod.create_moe_runner = choose_runner(create)


def _form(config: RunnerConfig) -> Form:
    kind, gated = config.activation, bool(config.is_gated)
    known = _GATED if gated else _PLAIN
    if kind not in known:
        expected = f"one of {', '.join(known)}{'' if gated else ', without gates'}"
        refuse(WAY, "OPF-I001", "activation", expected=expected, got=kind, hint=_HINT, part=PART)
    if config.no_combine:
        refuse(WAY, "OPF-I001", "no_combine", expected="False", got=True, hint=_HINT, part=PART)
    alpha, limit = config.gemm1_alpha, config.gemm1_clamp_limit
    form = known[kind]._replace(at_input=config.apply_router_weight_on_input)
    if (kind, gated) != ("silu", True):
        for name in ("gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit"):
            if getattr(config, name) is not None:
                expected = f"None with {kind}"
                refuse(WAY, "OPF-I001", name, expected=expected, got=getattr(config, name), hint=_HINT, part=PART)
        return form
    if alpha is None and limit is not None:  # SGLang clamps the gate after silu
        refuse(WAY, "OPF-I001", "gemm1_clamp_limit", expected="None without gemm1_alpha", got=limit, hint=_HINT, part=PART)
    if alpha is None:
        return form._replace(limit=config.swiglu_limit)
    if limit is None:
        refuse(WAY, "OPF-I001", "gemm1_clamp_limit", expected="a number with gemm1_alpha", got=None, hint=_HINT, part=PART)
    return form._replace(interleaved=bool(config.gate_up_interleaved), limit=float(limit), alpha=float(alpha), beta=1.0)


def _refuse_sizes(config: RunnerConfig, form: Form) -> None:
    dtype = name_of(config.params_dtype)
    if dtype is None:
        expected = "f16, bf16 or f32"
        refuse(WAY, "OPF-I001", "params_dtype", expected=expected, got=config.params_dtype, hint=_HINT, part=PART)
    width, bias = config.intermediate_size_per_partition, getattr(config.layer, "w13_weight_bias", None)
    bias_dtype = None if bias is None else name_of(bias.dtype)
    sizes = Sizes(config.num_local_experts, config.top_k, config.hidden_size, width, dtype, bias_dtype)
    refuse_without_kernel(WAY, sizes, form, here() if torch.cuda.is_available() else Target.cpu())
