"""Tensors of a framework in opfacade's form: names of dtypes, rows of a batch, index tensors of an even batch."""

from __future__ import annotations

from typing import NamedTuple, get_args

import torch
from torch import Tensor

from opfacade.base import capture
from opfacade.core.checks import plain_type
from opfacade.core.device_tensors import DeviceTensors
from opfacade.core.dtypes import FloatDType, torch_dtype
from opfacade.integrations.refusal import refuse
from opfacade.plans.kv_cache import even_indptr, even_page_table

_NAMES: dict[torch.dtype, FloatDType] = {torch_dtype(name): name for name in get_args(FloatDType)}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def dtype_of(way: str, name: str, tensor: Tensor) -> FloatDType:
    """The name of a tensor's dtype. Raises DTypeError for a dtype that attention does not support."""
    found = _NAMES.get(tensor.dtype)
    if found is None:
        refuse(way, "OPF-I003", name, expected=" or ".join(_NAMES.values()), got=tensor.dtype)
    return found


def name_of(dtype: torch.dtype) -> FloatDType | None:
    """The name of a dtype; None for a dtype that attention does not support."""
    return _NAMES.get(dtype)


def takes(tensor: Tensor) -> bool:
    """Whether norms, activations and rotations accept a tensor: not a wrapper, 16 or 32 bits, on the CPU or a CUDA device."""
    return plain_type(type(tensor)) and tensor.dtype in _FLOATS and tensor.device.type in ("cpu", "cuda")


def described(tensor: Tensor) -> str:
    """Type, dtype and device of a tensor that is not accepted; for a wrapper, only the type."""
    kind = "" if plain_type(type(tensor)) else f"a {type(tensor).__name__} of "
    return f"{kind}{tensor.dtype} on {tensor.device.type}"


def rows_of(x: Tensor) -> Tensor:
    """[batch, heads, length, dim] as rows [batch * length, heads, dim]: a view if the strides permit it, otherwise a copy."""
    return x.transpose(1, 2).flatten(0, 1)


class EvenBatch(NamedTuple):
    """Index tensors (i32, on the device) of requests of equal length: request b has page b of a pool."""

    q_indptr: Tensor
    kv_indptr: Tensor
    block_table: Tensor
    kv_lens: Tensor


def even_batch(like: Tensor, batch: int, q_len: int, kv_len: int) -> EvenBatch:
    """Index tensors of requests with q_len new rows at the end of kv_len tokens, on the device of `like`; cached for later
    calls."""
    return _even_batches.get(like.device, batch, q_len, kv_len)


def _even_batch(device: torch.device, batch: int, q_len: int, kv_len: int) -> EvenBatch:
    table = even_page_table(batch, kv_len, max(kv_len, 1), form="block", device=device)
    rows, keys = (even_indptr(batch, length, device=device) for length in (q_len, kv_len))
    return EvenBatch(rows, keys, table["block_table"], table["kv_lens"])


_even_batches = DeviceTensors(_even_batch)


def capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured on the device of `tensor`."""
    return capture.capturing(tensor.device)
