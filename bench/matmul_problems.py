"""The products that bench/matmul.py times: layers of models, and random sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, Scaling

# Layers: (n, k).
HALVES = {
    "70B qkv": (10240, 8192), "70B o": (8192, 8192), "70B gate_up": (57344, 8192), "70B down": (8192, 28672),
    "8B qkv": (6144, 4096), "8B o": (4096, 4096), "8B gate_up": (28672, 4096), "8B down": (4096, 14336),
    "DeepSeek fused_a": (2112, 7168), "DeepSeek q_b": (24576, 1536), "DeepSeek o": (7168, 16384),
    "router": (256, 7168), "n = 96": (96, 7168), "n = 1040": (1040, 4096), "lm_head": (128256, 4096),
}  # fmt: skip
BYTES = {
    "DeepSeek fused_a": (2112, 7168), "DeepSeek q_b": (24576, 1536), "DeepSeek kv_b": (32768, 512),
    "DeepSeek o": (7168, 16384), "DeepSeek gate_up": (4096, 7168), "DeepSeek down": (7168, 2048), "8B o": (4096, 4096),
}  # fmt: skip
ROWS, ROWS_OF_BYTES = (1, 16, 64, 128, 256, 1024, 4096, 8192), (1, 64, 128, 256, 4096, 8192)
KINDS = ("block", "token", "tensor")
_LARGEST = 2**32  # products of one random problem


@dataclass(frozen=True)
class Problem:
    table: str
    layer: str
    descriptor: MatmulDescriptor

    @property
    def kind(self) -> str:
        """The element type, or the kind of scales: peers tell these apart."""
        scaling = self.descriptor.scaling
        return self.descriptor.dtype if scaling is None else scaling.kind

    @property
    def name(self) -> str:
        d = self.descriptor
        return f"{self.table}, {self.layer}: {d.total_num_rows} x {d.n} x {d.k} {self.kind}"

    @property
    def flops(self) -> float:
        d = self.descriptor
        return 2.0 * d.total_num_rows * d.n * d.k

    def args(self, device: str, seed: int = 1) -> MatmulArgs:
        """Normal numbers; scales near those that quantised models have."""
        d, made = self.descriptor, torch.Generator(device).manual_seed(seed)
        x, weight = (_normal((rows, d.k), d.dtype, made) for rows in (d.total_num_rows, d.n))
        out = torch.full((d.total_num_rows, d.n), float("nan"), device=device).to(torch.bfloat16)
        if d.scaling is None:
            return MatmulArgs(x=x, weight=weight, out=out)
        specs = d.operands()
        shapes = {name: tuple(dim.size or 0 for dim in specs[name].shape) for name in ("x_scale", "weight_scale")}
        scales = {name: torch.rand(shape, generator=made, device=device) + 0.5 for name, shape in shapes.items()}
        return MatmulArgs(x=x, weight=weight, out=out, **scales)


_TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f8_e4m3": torch.float8_e4m3fn}


def _normal(shape: tuple[int, int], dtype: str, made: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=made, device=made.device, dtype=torch.float32).to(_TORCH[dtype])


def halves(table: str, layer: str, rows: int, n: int, k: int) -> Problem:
    return Problem(table, layer, MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16"))


def in_bytes(table: str, layer: str, sizes: tuple[int, int, int], kind: str) -> Problem:
    layout = "column_padded4" if kind == "block" else "row"
    rows, n, k = sizes
    scaling = Scaling.model_validate({"kind": kind, "x_scale_layout": layout})
    return Problem(table, layer, MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="f8_e4m3", scaling=scaling))


def layers() -> Iterator[Problem]:
    """The layers of models, the kinds of scales of one layer among them."""
    for layer, (n, k) in HALVES.items():
        yield from (halves("bf16", layer, rows, n, k) for rows in ROWS)
    for layer, (n, k) in BYTES.items():
        yield from (in_bytes("fp8", layer, (rows, n, k), "block") for rows in ROWS_OF_BYTES)
    yield from (in_bytes("fp8", "8B o", (rows, 4096, 4096), kind) for kind in KINDS[1:] for rows in ROWS_OF_BYTES)


def drawn(seed: int, count: int) -> list[Problem]:
    """Random sizes, uniform in their logarithms and odd as often as not; every third is fp8 in blocks."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        rows, n, k = (_size(rng, least, most) for least, most in ((1, 8192), (16, 16384), (16, 16384)))
        if rows * n * k <= _LARGEST * 64:
            eight = len(found) % 3 == 2
            found.append(in_bytes("sweep", "random", (rows, n, k), "block") if eight else halves("sweep", "random", rows, n, k))
    return found


def _size(rng: random.Random, least: int, most: int) -> int:
    found = round(least * (most / least) ** rng.random())
    return found if rng.random() < 0.5 else max(least, found // 16 * 16)
