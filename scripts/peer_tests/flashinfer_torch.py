"""FlashInfer's call for a single request as a dense oracle in float64, and a torch that maps every device to the CPU."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from judging import OracleLacks
from torch.overrides import TorchFunctionMode

from opfacade.variant_examples import alibi_slopes

NAMES = ("single_prefill_with_kv_cache", "single_decode_with_kv_cache", "single_prefill_with_kv_cache_return_lse")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [n, h, d] over k and v [m, hk, *]. Returns o in float64, and lse in base 2."""
    mode = asked.get("pos_encoding_mode") or "NONE"
    if mode not in ("NONE", "ALIBI"):
        raise OracleLacks(f"oracle: pos_encoding_mode={mode} rotates inside attention")
    (n, heads, dim), (m, kv_heads, _) = q.shape, k.shape
    q, k, v = q.double(), *(x.double().repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    row, key = torch.arange(n, device=q.device)[:, None], torch.arange(m, device=q.device)[None]
    mask, window, cap = asked.get("custom_mask"), asked.get("window_left"), asked.get("logits_soft_cap")
    seen = torch.ones(n, m, dtype=torch.bool, device=q.device) if mask is None else mask.reshape(n, m).bool()
    if asked.get("causal") and mask is None:
        seen = seen & (key <= row + m - n)
    if window is not None and window >= 0:
        seen = seen & (key >= row + m - n - window)
    scale = asked.get("sm_scale")
    scores = torch.einsum("nhd,mhd->hnm", q, k) * (dim**-0.5 if scale is None else scale) * _number(asked, "q_scale", "k_scale")
    if mode == "ALIBI":
        slopes = torch.tensor(alibi_slopes(heads), dtype=torch.float64, device=q.device)
        scores = scores + slopes[:, None, None] * (key - row)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None] == -math.inf, 0.0, (scores - lse[..., None]).exp())
    return torch.einsum("hnm,mhd->nhd", weights, v) * _number(asked, "v_scale"), (lse * math.log2(math.e)).T.float()


def _number(asked: dict[str, Any], *names: str) -> Any:
    product: Any = 1.0
    for name in names:
        product = product * (1.0 if asked.get(name) is None else asked[name])
    return product


def _prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **asked: Any) -> Any:
    if rest or asked.get("scale_q") is not None or asked.get("packed_custom_mask") is not None:
        raise OracleLacks("oracle: factors of heads or bits of a mask")
    if asked.get("kv_layout") == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    o, lse = attention(q, k, v, asked)
    o = o.to(asked.get("o_dtype") or (q.dtype if q.element_size() > 1 else torch.bfloat16))
    return (o, lse) if asked.get("return_lse") else o


def _decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_layout: str = "NHD", *rest: Any, **asked: Any) -> Any:
    for name, value in zip(("pos_encoding_mode", "use_tensor_cores", "q_scale", "k_scale", "v_scale"), rest, strict=False):
        asked[name] = value
    result = _prefill(q[None], k, v, **{**asked, "kv_layout": kv_layout})
    return (result[0][0], result[1][0]) if asked.get("return_lse") else result[0]


def _with_lse(*args: Any, **asked: Any) -> Any:
    return _prefill(*args, **{**asked, "return_lse": True})


ORACLES = dict(zip(NAMES, (_prefill, _decode, _with_lse), strict=True))


@contextlib.contextmanager
def oracle_of_single_calls(wanted: bool) -> Iterator[None]:
    """Within the block, the calls for a single request that tests look up are the oracle."""
    if not wanted:
        yield
        return
    places = [sys.modules[name] for name in ("flashinfer", "flashinfer.prefill", "flashinfer.decode")]
    before = [(place, name, getattr(place, name)) for place in places for name in NAMES if name in vars(place)]
    for place, name, _ in before:
        setattr(place, name, ORACLES[name])
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "to":
            args = (args[0], *("cpu" if _is_device(x) else x for x in args[1:]))
        return function(*args, **kwargs)


def _is_device(x: object) -> bool:
    return isinstance(x, torch.device) or (isinstance(x, str) and x.startswith("cuda")) or type(x) is int


class _Generator(torch.Generator):
    """A CPU generator, for any device."""

    def __new__(cls, device: object = None) -> torch.Generator:
        return super().__new__(cls)


def on_cpu() -> None:
    """From now on, every tensor is created on the CPU, and device queries return the properties of an H100."""
    _OnCpu().__enter__()
    capability = lambda *args: (9, 0)  # noqa: E731
    torch.cuda.get_device_capability = capability
    torch.cuda.get_device_properties = lambda *args: SimpleNamespace(multi_processor_count=132, total_memory=80 << 30)
    for name in ("synchronize", "set_device", "empty_cache", "manual_seed"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    torch.set_default_device = lambda *args: None
    torch.Generator = _Generator
