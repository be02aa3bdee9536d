"""Sizes of named models, from their published configurations. Tests compare them with the defaults in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from opfacade.base.did_you_mean import did_you_mean
from opfacade.base.short_repr import shown
from opfacade.errors import Issue, from_issues
from opfacade.plans.moe import Router


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention: a head's part without and with rotation, a value, and the latent rows of queries and of
    keys."""

    q_rank: int = 1536
    rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    value_dim: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model. hidden, intermediate, vocab: elements of a row; width: elements of an expert's activation, with `top` experts
    per token.

    rounding: the model whose norms it uses. qk_norm: whether heads of q and k have a norm. windows: window_left of its kinds of
    layers. biased: whether products of attention and the router have biases. experts, router, shared_width: sizes of a layer of
    experts. dense_layers: the number of layers without experts.
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float
    rounding: Literal["huggingface", "flashinfer"] = "huggingface"
    qk_norm: bool = False
    windows: tuple[int, ...] = (-1,)
    sinks: bool = False
    activation: Literal["silu", "swiglu_oai"] = "silu"
    width: int | None = None
    top: int = 0
    experts: int = 0
    router: Router | None = None
    shared_width: int = 0
    dense_layers: int = 0
    biased: bool = False
    scale: Literal["token", "group"] = "token"  # the group size for fp8 rows
    latent: Latent | None = None


_ALL = (
    ModelFacts(
        name="llama3-8b", hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=128256, eps=1e-5,
    ),
    ModelFacts(
        name="qwen3-30b", hidden=2048, heads=32, kv_heads=4, head_dim=128, intermediate=6144, vocab=151936, eps=1e-6,
        qk_norm=True, width=768, top=8, experts=128, router=Router(dtype="bf16", renormalise=True),
    ),
    ModelFacts(
        name="deepseek-v3", hidden=7168, heads=128, kv_heads=128, head_dim=192, intermediate=18432, vocab=129280, eps=1e-6,
        width=2048, top=8, scale="group", latent=Latent(), experts=256, shared_width=2048, dense_layers=3,
        router=Router(
            dtype="bf16", score="sigmoid", correction=True, groups=8, top_groups=4, group_score="top2", renormalise=True,
            scale=2.5,
        ),
    ),
    ModelFacts(
        name="gpt-oss", hidden=2880, heads=64, kv_heads=8, head_dim=64, intermediate=2880, vocab=201088, eps=1e-5,
        rounding="flashinfer", windows=(127, -1), sinks=True, activation="swiglu_oai", width=2880, top=4,
        experts=32, router=Router(dtype="bf16", score="softmax_chosen"), biased=True,
    ),
)  # fmt: skip
MODELS: Mapping[str, ModelFacts] = MappingProxyType({model.name: model for model in _ALL})


def facts_of(name: str) -> ModelFacts:
    """The model of a name. Raises DescriptorError (OPF-D060) for an unknown name, with the most similar name."""
    if name in MODELS:
        return MODELS[name]
    hint = did_you_mean(name, MODELS, {}) if isinstance(name, str) else ""
    issue = Issue("OPF-D060", "name", f"one of {', '.join(MODELS)}", shown(name), hint, kind="DescriptorError")
    raise from_issues("model", "", [issue])
