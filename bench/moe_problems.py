"""The layers of experts that bench/moe.py times: sizes of models, numbers of tokens, and the choice of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from opfacade.plans.moe import FusedMoeArgs, FusedMoeDescriptor

LAYERS: dict[str, dict[str, Any]] = {
    "gpt-oss-20b": {
        "experts": 32, "top_k": 4, "hidden": 2880, "width": 2880, "halves": "interleaved", "limit": 7.0, "alpha": 1.702,
        "beta": 1.0, "bias": True, "weight_layout": "kn",
    },
    "Qwen3-30B-A3B": {"experts": 128, "top_k": 8, "hidden": 2048, "width": 768},
    "DeepSeek-V3": {"experts": 256, "top_k": 8, "hidden": 7168, "width": 2048},
}  # fmt: skip
KINDS = {"gpt-oss-20b": ("bf16",), "Qwen3-30B-A3B": ("bf16", "fp8"), "DeepSeek-V3": ("bf16", "fp8")}
TOKENS = (1, 16, 64, 256, 1024, 8192)
ROUTINGS = ("uniform", "skewed", "one")
GRANULE = 16  # groups are padded to a multiple of this many rows


@dataclass(frozen=True)
class Problem:
    """kind: "bf16", or "fp8" in blocks of 128. routing: "uniform": any experts; "skewed": the r-th expert with a probability
    proportional to 1 / r; "one": all tokens choose the same experts."""

    layer: str
    kind: str
    tokens: int
    routing: str

    @property
    def name(self) -> str:
        return f"{self.layer} {self.kind}: {self.tokens} tokens, {self.routing}"

    @property
    def descriptor(self) -> FusedMoeDescriptor:
        scaling = {"scaling": "block"} if self.kind == "fp8" else {}
        return FusedMoeDescriptor(total_num_rows=self.tokens, dtype="bf16", **LAYERS[self.layer], **scaling)

    @property
    def flops(self) -> float:
        d = self.descriptor
        return 2.0 * d.total_num_rows * d.top_k * d.hidden * d.width * (d.columns + 1)

    def bytes(self, counts: torch.Tensor) -> int:
        """The bytes of the chosen experts' weights, x and out, each counted once."""
        d = self.descriptor
        elements, size = d.hidden * d.width * (d.columns + 1), 1 if self.kind == "fp8" else 2
        each = elements * size + (elements // 128**2 * 4 if self.kind == "fp8" else 0)
        each += (d.columns * d.width + d.hidden) * 2 if d.bias else 0
        return int((counts > 0).sum()) * each + 2 * 2 * d.total_num_rows * d.hidden + 8 * d.total_num_rows * d.top_k

    def args(self, weights: FusedMoeArgs, seed: int = 1) -> FusedMoeArgs:
        """A call with the weights of a layer."""
        d, device = self.descriptor, weights.up.device
        made = torch.Generator(device).manual_seed(seed)
        x = torch.randn(self.tokens, d.hidden, generator=made, device=device, dtype=torch.bfloat16)
        of_choices = torch.rand(self.tokens, d.top_k, generator=made, device=device) + 0.1
        of_choices = of_choices / of_choices.sum(1, keepdim=True)
        return replace(weights, x=x, ids=self.ids(made), weights=of_choices, out=torch.full_like(x, float("nan")))

    def ids(self, made: torch.Generator) -> torch.Tensor:
        """Distinct experts for each token."""
        d = self.descriptor
        if self.routing == "one":
            return torch.arange(d.top_k, device=made.device, dtype=torch.int32).repeat(self.tokens, 1)
        noise = -torch.empty(self.tokens, d.experts, device=made.device).exponential_(generator=made).log()
        if self.routing == "skewed":
            noise -= torch.arange(1, d.experts + 1, device=made.device).float().log()
        return noise.topk(d.top_k, 1).indices.int()


def weights_of(layer: str, kind: str, device: str, seed: int = 2) -> FusedMoeArgs:
    """Weights scaled so that results have about the size of x; the other tensors of a call are placeholders."""
    d = Problem(layer, kind, 1, "one").descriptor
    made, none = torch.Generator(device).manual_seed(seed), torch.empty(0, device=device)
    found: dict[str, torch.Tensor] = {}
    for name, n, k in (("up", d.columns * d.width, d.hidden), ("down", d.hidden, d.width)):
        shape = (n, k) if d.weight_layout == "nk" else (k, n)
        dtype = torch.float8_e4m3fn if kind == "fp8" else torch.bfloat16
        found[name] = torch.empty(d.experts, *shape, device=device, dtype=dtype)
        for expert in range(d.experts):
            one = torch.randn(shape, generator=made, device=device)
            found[name][expert] = (one if kind == "fp8" else one / k**0.5).to(dtype)
        if kind == "fp8":
            spread = torch.rand(d.experts, n // 128, k // 128, generator=made, device=device)
            found[f"{name}_scale"] = (spread + 0.5) / k**0.5
        if d.bias:
            found[f"{name}_bias"] = torch.randn(d.experts, n, generator=made, device=device).bfloat16() / 10
    return FusedMoeArgs(**{name: found.get(name, none) for name in ("x", "out", "up", "down")},
                        **{name: one for name, one in found.items() if name not in ("up", "down")})  # fmt: skip


def layers() -> Iterator[tuple[str, str, list[Problem]]]:
    """(layer, kind, problems) with the same weights. With one token, all routings are equivalent, so only one is used."""
    for layer, kinds in KINDS.items():
        for kind in kinds:
            chosen = ((tokens, routing) for tokens in TOKENS for routing in (ROUTINGS if tokens > 1 else ROUTINGS[:1]))
            yield layer, kind, [Problem(layer, kind, tokens, routing) for tokens, routing in chosen]


def counts_of(problem: Problem, ids: torch.Tensor) -> torch.Tensor:
    """The number of rows of each expert."""
    return torch.bincount(ids.flatten().long(), minlength=problem.descriptor.experts)


def fill(counts: torch.Tensor) -> float:
    """The share of rows that are not padding, if groups are padded to GRANULE."""
    padded = (counts + GRANULE - 1) // GRANULE * GRANULE
    return round(float(counts.sum() / padded.sum()), 3)
