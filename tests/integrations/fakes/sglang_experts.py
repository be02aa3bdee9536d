"""The part of SGLang 0.5.23 that builds and calls a layer of experts, with its own runner as a loop over experts in f64."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn


class MoeRunnerBackend(Enum):
    AUTO = "auto"
    TRITON = "triton"

    def is_triton(self):
        return self is MoeRunnerBackend.TRITON


class MoeA2ABackend(Enum):
    NONE = "none"
    DEEPEP = "deepep"

    def is_none(self):
        return self is MoeA2ABackend.NONE


@dataclass(frozen=True)
class RegisteredMoeRunnerBackend:
    value: str

    def is_triton(self):
        return False


@dataclass
class MoeRunnerConfig:
    num_experts: int | None = None
    num_local_experts: int | None = None
    hidden_size: int | None = None
    intermediate_size_per_partition: int | None = None
    top_k: int | None = None
    params_dtype: torch.dtype | None = None
    runner_backend: Any = None
    activation: str = "silu"
    is_gated: bool = True
    apply_router_weight_on_input: bool = False
    inplace: bool = True
    no_combine: bool = False
    routed_scaling_factor: float | None = None
    gemm1_alpha: float | None = None
    gemm1_clamp_limit: float | None = None
    swiglu_limit: float | None = None
    gate_up_interleaved: bool = True
    layer: Any = None


@dataclass
class TritonMoeQuantInfo:
    w13_weight: torch.Tensor
    w2_weight: torch.Tensor
    b13: torch.Tensor | None = None
    b2: torch.Tensor | None = None
    use_mxfp8: bool = False
    use_fp8_w8a8: bool = False
    use_int8_w8a8: bool = False
    use_int8_w8a16: bool = False
    use_int4_w4a16: bool = False
    block_shape: list | None = None
    fuse_swiglu_interleaved: bool = False


class DispatchMoeRunnerCore(ABC):
    def __init__(self, config):
        self.config = config

    @property
    @abstractmethod
    def runner_backend(self): ...

    @abstractmethod
    def run_from_dispatch(self, dispatch_output, quant_info, runner_config, hooks=None): ...


class StandardTopKOutput(NamedTuple):
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    router_logits: torch.Tensor


class StandardDispatchOutput(NamedTuple):
    hidden_states: torch.Tensor
    hidden_states_scale: torch.Tensor | None
    topk_output: StandardTopKOutput
    hidden_states_pre_quant: tuple | None = None


class StandardCombineInput(NamedTuple):
    hidden_states: torch.Tensor


def modules():
    """The registries, runner and method of one test, by module; flags holds the command-line backends."""
    factories, names, flags = {}, set(), SimpleNamespace(runner=MoeRunnerBackend.AUTO, a2a=MoeA2ABackend.NONE)

    def resolve_moe_runner_backend(backend):
        if isinstance(backend, (MoeRunnerBackend, RegisteredMoeRunnerBackend)):
            return backend
        return RegisteredMoeRunnerBackend(backend) if backend in names else MoeRunnerBackend(backend)

    def register_moe_runner_core(backend_name, factory):
        if backend_name in factories:
            raise ValueError(f"Runner core for {backend_name!r} is already registered")
        names.add(backend_name)
        factories[backend_name] = factory

    class MoeRunner:
        def __init__(self, runner_backend, config, lora_enabled=False):
            self.runner_backend, self.config, self.lora_enabled = runner_backend, config, lora_enabled
            own = factories.get(runner_backend.value)
            self.runner_core = None if own is None else own(config)

        def run(self, dispatch_output, quant_info, lora_info=None):
            if self.runner_core is None:
                found = exact(dispatch_output, quant_info, self.config)
                return StandardCombineInput(found.to(dispatch_output.hidden_states.dtype))
            hooks = None if lora_info is None else "hooks"
            return self.runner_core.run_from_dispatch(dispatch_output, quant_info, self.config, hooks=hooks)

    class UnquantizedFusedMoEMethod:
        def __init__(self):
            self.with_bias, self.runner = False, None

        def create_weights(
            self, layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype, with_bias=False,
            **extra_weight_attrs,
        ):  # fmt: skip
            self.with_bias = with_bias
            wide = intermediate_size_per_partition * (2 if layer.moe_runner_config.is_gated else 1)
            for name, shape, dtype in (
                ("w13_weight", (num_experts, wide, hidden_size), params_dtype),
                ("w2_weight", (num_experts, hidden_size, intermediate_size_per_partition), params_dtype),
                ("w13_weight_bias", (num_experts, wide), torch.float32),
                ("w2_weight_bias", (num_experts, hidden_size), torch.float32),
            ):
                if with_bias or not name.endswith("bias"):
                    made = torch.full(shape, float("nan"), dtype=dtype)
                    layer.register_parameter(name, nn.Parameter(made, requires_grad=False))

        def create_moe_runner(self, layer, moe_runner_config):
            self.moe_runner_config = moe_runner_config
            self.runner = MoeRunner(MoeRunnerBackend.TRITON, moe_runner_config)

        def get_moe_runner_backend(self, layer):
            return self.runner.runner_backend

        def apply(self, layer, dispatch_output):
            quant_info = TritonMoeQuantInfo(
                layer.w13_weight, layer.w2_weight, getattr(layer, "w13_weight_bias", None),
                getattr(layer, "w2_weight_bias", None),
            )  # fmt: skip
            return self.runner.run(dispatch_output, quant_info)

    moe = "sglang__srt__layers__moe__"
    runner = {"MoeRunner": MoeRunner, "register_moe_runner_core": register_moe_runner_core}
    return flags, {
        f"{moe}moe_runner": runner, f"{moe}moe_runner__runner": runner,
        f"{moe}moe_runner__base": {"DispatchMoeRunnerCore": DispatchMoeRunnerCore},
        f"{moe}moe_runner__triton": {"TritonMoeQuantInfo": TritonMoeQuantInfo},
        f"{moe}token_dispatcher__standard": {"StandardCombineInput": StandardCombineInput},
        f"{moe}utils": {
            "get_moe_a2a_backend": lambda: flags.a2a, "get_moe_runner_backend": lambda: flags.runner,
            "resolve_moe_runner_backend": resolve_moe_runner_backend,
        },
        "sglang__srt__layers__quantization__unquant": {"UnquantizedFusedMoEMethod": UnquantizedFusedMoEMethod},
    }  # fmt: skip


def activated(config, both):
    """The function of the Triton runner, by its formula."""
    plain = {"silu": nn.functional.silu, "gelu": nn.functional.gelu, "relu2": lambda x: x.clamp(min=0).square(),
             "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh")}[config.activation]  # fmt: skip
    if not config.is_gated:
        return plain(both)
    pairs = config.gemm1_alpha is not None and config.gate_up_interleaved
    gate, up = (both[..., ::2], both[..., 1::2]) if pairs else both.chunk(2, -1)
    limit = config.swiglu_limit if config.gemm1_alpha is None else config.gemm1_clamp_limit
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if config.gemm1_alpha is not None:
        return gate * torch.sigmoid(config.gemm1_alpha * gate) * (up + 1)
    return plain(gate) * up


def exact(dispatch_output, quant_info, config):
    """f64 [rows, hidden]: each choice whose id is not -1."""
    x, (weights, ids, _) = dispatch_output.hidden_states, dispatch_output.topk_output
    out, at_input = torch.zeros(x.shape, dtype=torch.float64, device=x.device), config.apply_router_weight_on_input
    for row, slot in ((r, s) for r in range(len(x)) for s in range(ids.shape[1])):
        expert, weight = int(ids[row, slot]), weights[row, slot].double()
        if expert < 0:
            continue
        both = quant_info.w13_weight[expert].double() @ (x[row].double() * (weight if at_input else 1))
        both = both if quant_info.b13 is None else both + quant_info.b13[expert].double()
        down = quant_info.w2_weight[expert].double() @ activated(config, both)
        down = down if quant_info.b2 is None else down + quant_info.b2[expert].double()
        out[row] += down * (1 if at_input else weight)
    return out * (1.0 if config.routed_scaling_factor is None else config.routed_scaling_factor)


class FusedMoE(nn.Module):
    """A layer whose dispatcher maps global expert ids to local ones."""

    def __init__(self, method, config, local=None, with_bias=False):
        super().__init__()
        self.moe_runner_config, self.quant_method, self.local = config, method(), local
        config.layer = self
        self.quant_method.create_weights(
            layer=self, num_experts=config.num_local_experts, hidden_size=config.hidden_size,
            intermediate_size_per_partition=config.intermediate_size_per_partition, params_dtype=config.params_dtype,
            with_bias=with_bias, weight_loader=None,
        )  # fmt: skip
        self.quant_method.create_moe_runner(self, config)
        config.runner_backend = self.quant_method.get_moe_runner_backend(self)

    def dispatched(self, x, weights, ids):
        if self.local is not None:
            ids = torch.where(ids < 0, -1, self.local[ids.clamp_min(0)])
        return StandardDispatchOutput(x, None, StandardTopKOutput(weights, ids, torch.empty(0)))

    def forward(self, x, weights, ids):
        return self.quant_method.apply(self, self.dispatched(x, weights, ids)).hidden_states
