"""The products that bench/matmul.py times: layers of models, and random sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor, Scaling, Weight

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
CODES = {"8B o": (4096, 4096), "70B o": (8192, 8192), "8B down": (4096, 14336)}
ROWS_OF_CODES = (1, 16, 64, 512)
KINDS = ("block", "token", "tensor")
_W4A16 = Weight(dtype="uint4", group=128, zero="int", dequantise="rounded")
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
        if self.descriptor.weight_format is not None:
            return "W4A16"
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
        if d.weight_format is not None:
            return _coded_args(d, made)
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


def _coded_args(d: MatmulDescriptor, made: torch.Generator) -> MatmulArgs:
    """Any codes, and scales near a hundredth."""
    shape = tuple(dim.size or 0 for dim in d.operands()["weight_scale"].shape)
    codes, zero = (torch.randint(0, most, size, generator=made, device=made.device, dtype=torch.uint8)
                   for most, size in ((256, (d.n, d.k // 2)), (16, shape)))  # fmt: skip
    scale = (torch.rand(shape, generator=made, device=made.device) / 100 + 0.005).bfloat16()
    x = _normal((d.total_num_rows, d.k), d.dtype, made)
    return MatmulArgs(x=x, weight=codes, weight_scale=scale, weight_zero=zero, out=torch.full_like(x[:, :1], 0).repeat(1, d.n))


def dense(d: MatmulDescriptor, args: MatmulArgs) -> torch.Tensor:
    """The decoded weight [n, k] in the type of x, for peers without support for codes."""
    assert args.weight is not None
    assert args.weight_scale is not None
    assert args.weight_zero is not None
    codes = torch.stack((args.weight & 15, args.weight >> 4), -1).flatten(1).float()
    zero, scale = (one.float().repeat_interleave(128, 1)[:, : d.k] for one in (args.weight_zero, args.weight_scale))
    return ((codes - zero) * scale).to(_TORCH[d.dtype])


def halves(table: str, layer: str, rows: int, n: int, k: int) -> Problem:
    return Problem(table, layer, MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16"))


def in_bytes(table: str, layer: str, sizes: tuple[int, int, int], kind: str) -> Problem:
    layout = "column_padded4" if kind == "block" else "row"
    rows, n, k = sizes
    scaling = Scaling.model_validate({"kind": kind, "x_scale_layout": layout})
    return Problem(table, layer, MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="f8_e4m3", scaling=scaling))


def _coded(layer: str, rows: int, n: int, k: int) -> Problem:
    return Problem("codes", layer, MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16", weight_format=_W4A16))


def layers() -> Iterator[Problem]:
    """The layers of models, including all kinds of scales for one layer."""
    for layer, (n, k) in HALVES.items():
        yield from (halves("bf16", layer, rows, n, k) for rows in ROWS)
    for layer, (n, k) in BYTES.items():
        yield from (in_bytes("fp8", layer, (rows, n, k), "block") for rows in ROWS_OF_BYTES)
    for layer, (n, k) in CODES.items():
        yield from (_coded(layer, rows, n, k) for rows in ROWS_OF_CODES)
    yield from (in_bytes("fp8", "8B o", (rows, 4096, 4096), kind) for kind in KINDS[1:] for rows in ROWS_OF_BYTES)


def drawn(seed: int, count: int) -> list[Problem]:
    """Random sizes, log-uniform, odd with probability 1/2; every third problem is fp8 with block scales."""
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
