"""The part of vLLM 0.33 that builds and calls a layer of experts, with its own method as a loop over experts in f64."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace

import torch
from torch import nn


class MoEActivation(Enum):
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU2 = "relu2"
    SWIGLUOAI = "swigluoai"
    SITU = "situ"
    SWIGLUOAI_UNINTERLEAVE = "swigluoai_uninterleave"
    SWIGLUSTEP = "swiglustep"
    SILU_NO_MUL = "silu_no_mul"
    GELU_NO_MUL = "gelu_no_mul"
    GELU_TANH_NO_MUL = "gelu_tanh_no_mul"
    RELU2_NO_MUL = "relu2_no_mul"

    @property
    def is_gated(self):
        return not self.value.endswith("_no_mul")


class UnquantizedMoeBackend(Enum):
    TRITON = "TRITON"
    OOT = "OOT"


@dataclass
class FusedMoEParallelConfig:
    use_ep: bool = False
    all2all_backend: str = "allgather_reducescatter"
    use_all2all_kernels: bool = False


@dataclass
class FusedMoEConfig:
    num_experts: int
    experts_per_token: int
    hidden_dim: int
    num_local_experts: int
    activation: MoEActivation = MoEActivation.SILU
    in_dtype: torch.dtype = torch.float32
    intermediate_size_per_partition: int = 24
    device: str = "cpu"
    moe_parallel_config: FusedMoEParallelConfig = field(default_factory=FusedMoEParallelConfig)
    moe_backend: str = "auto"
    has_bias: bool = False
    is_lora_enabled: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float | None = None
    swiglu_beta: float | None = None


class QuantizeMethodBase(ABC):
    supports_pre_processed_weights = False

    @abstractmethod
    def create_weights(self, layer, *weight_args, **extra_weight_attrs):
        raise NotImplementedError

    def process_weights_after_loading(self, layer):
        return


def custom_op():
    """A class CustomOp with separate registries, as in vLLM's module."""
    replaced = {}

    class CustomOp(nn.Module):
        def __new__(cls, *args, **kwargs):
            return super().__new__(replaced.get(cls.__name__, cls))

        def __init__(self, *, enforce_enable=False, compile_native=False):
            super().__init__()
            self._forward_method = self.forward_native

        def forward(self, *args, **kwargs):
            return self._forward_method(*args, **kwargs)

        def forward_native(self, *args, **kwargs):
            raise NotImplementedError

        @classmethod
        def register_oot(cls, _decorated_op_cls=None, name=None):
            def decorator(op_cls):
                reg_name = name if name is not None else cls.__name__
                assert reg_name not in replaced, f"Duplicate op name: {reg_name}"
                op_cls.name = reg_name
                replaced[reg_name] = op_cls
                return op_cls

            return decorator(_decorated_op_cls)

    return {"CustomOp": CustomOp, "op_registry_oot": replaced}


class FusedMoEMethodBase(QuantizeMethodBase):
    def __init__(self, moe):
        super().__init__()
        self.moe = moe
        self.moe_quant_config = None
        self.moe_kernel = None

    @property
    def is_monolithic(self):
        return self.experts_cls.is_monolithic() if self.moe_kernel is None else self.moe_kernel.is_monolithic

    @property
    def topk_indices_dtype(self):
        return None

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        raise NotImplementedError


def method_of(op):
    """vLLM's own method for experts without quantisation, over a class CustomOp."""

    class UnquantizedFusedMoEMethod(FusedMoEMethodBase, op):
        def __init__(self, moe):
            super().__init__(moe)
            self.unquantized_backend = UnquantizedMoeBackend.TRITON
            self.experts_cls = SimpleNamespace(is_monolithic=lambda: False)

        def create_weights(
            self, layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype, **extra_weight_attrs
        ):
            wide = intermediate_size_per_partition * (2 if self.moe.activation.is_gated else 1)
            shapes = {
                "w13_weight": (num_experts, wide, hidden_size),
                "w2_weight": (num_experts, hidden_size, intermediate_size_per_partition),
            }
            if self.moe.has_bias:
                shapes |= {"w13_bias": (num_experts, wide), "w2_bias": (num_experts, hidden_size)}
            for name, shape in shapes.items():
                made = nn.Parameter(torch.full(shape, float("nan"), dtype=params_dtype), requires_grad=False)
                layer.register_parameter(name, made)
                for key, value in extra_weight_attrs.items():
                    setattr(made, key, value)

        def process_weights_after_loading(self, layer):
            self.moe_kernel = SimpleNamespace(is_monolithic=False)

        def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
            return exact(layer, x, topk_weights, topk_ids).to(x.dtype)

    return UnquantizedFusedMoEMethod


def activated(layer, both):
    """The function of vLLM's activation, by its formula."""
    kind, config = layer.activation, layer.moe_config
    limit = config.swiglu_limit
    if not kind.is_gated:
        plain = kind.value.removesuffix("_no_mul")
        return FUNCTIONS[plain](both)
    gate, up = (both[..., ::2], both[..., 1::2]) if kind is MoEActivation.SWIGLUOAI else both.chunk(2, -1)
    if kind is MoEActivation.SWIGLUOAI:
        limit = 7.0
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if kind is MoEActivation.SWIGLUOAI:
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    if kind is MoEActivation.SWIGLUOAI_UNINTERLEAVE:
        return gate * torch.sigmoid((config.swiglu_alpha or 1.0) * gate) * (up + (config.swiglu_beta or 0.0))
    return FUNCTIONS[kind.value](gate) * up


FUNCTIONS = {
    "silu": nn.functional.silu, "gelu": nn.functional.gelu, "relu2": lambda x: nn.functional.relu(x).square(),
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
}  # fmt: skip


def exact(layer, x, topk_weights, topk_ids):
    """f64 [rows, hidden]: each choice whose expert is on this rank."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for row, slot in ((r, s) for r in range(len(x)) for s in range(topk_ids.shape[1])):
        expert, weight = int(topk_ids[row, slot]), topk_weights[row, slot].double()
        if layer.expert_map is not None and expert >= 0:
            expert = int(layer.expert_map[expert])
        if expert < 0:
            continue
        given = x[row].double() * (weight if layer.apply_router_weight_on_input else 1)
        both = layer.w13_weight[expert].double() @ given
        down = layer.w2_weight[expert].double() @ activated(layer, both + _bias(layer, "w13_bias", expert))
        out[row] += (down + _bias(layer, "w2_bias", expert)) * (1 if layer.apply_router_weight_on_input else weight)
    return out


def _bias(layer, name, expert):
    return getattr(layer, name)[expert].double() if hasattr(layer, name) else 0.0


class RoutedExperts(nn.Module):
    """Weights of this rank's experts. expert_map: int32 [global], as ExpertMapManager creates it."""

    def __init__(self, method, moe_config, expert_map=None, apply_router_weight_on_input=False):
        super().__init__()
        self.moe_config, self.activation = moe_config, moe_config.activation
        self.apply_router_weight_on_input = apply_router_weight_on_input
        for name in ("swiglu_limit", "swiglu_alpha", "swiglu_beta"):
            setattr(self, name, getattr(moe_config, name))
        self.register_buffer("_expert_map", expert_map, persistent=False)
        self.quant_method = method(moe_config)
        self.quant_method.create_weights(
            layer=self, num_experts=moe_config.num_local_experts, hidden_size=moe_config.hidden_dim,
            unpadded_hidden_size=moe_config.hidden_dim, params_dtype=moe_config.in_dtype,
            intermediate_size_per_partition=moe_config.intermediate_size_per_partition, weight_loader=None,
            global_num_experts=moe_config.num_experts,
        )  # fmt: skip

    @property
    def expert_map(self):
        return self._expert_map

    def forward_modular(self, x, topk_weights, topk_ids, shared_experts=None, shared_experts_input=None):
        assert not self.quant_method.is_monolithic
        return self.quant_method.apply(
            layer=self, x=x, topk_weights=topk_weights, topk_ids=topk_ids, shared_experts=shared_experts,
            shared_experts_input=shared_experts_input,
        )  # fmt: skip


__all__ = ["FusedMoEConfig", "FusedMoEParallelConfig", "MoEActivation", "RoutedExperts", "UnquantizedMoeBackend", "exact"]
