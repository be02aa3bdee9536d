"""Exact tests of attention: errors below any bound, such as one lost key among thousands, change single bits.

Each check draws a call, runs it and returns a description of each error; empty if there is none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opfacade.testing import inputs, numerics
from opfacade.testing.families.attention import oracle, variation
from opfacade.testing.families.attention.call import is_paged
from opfacade.testing.families.attention.requests import Requests, bits, put_kv, same_bits
from opfacade.testing.subject import Subject, outputs

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.testing.families.attention.call import AttentionCall, Problem

_NATS = 220.0  # exp(-220) is negligible relative to 1 in f32 and in f64


def request_views(subject: Subject, args: AttentionCall) -> Iterator[tuple[int, slice, int, Tensor]]:
    """Yields (request, its rows, kv_len, mask [rows, kv_len] of visible keys) for every request with rows."""
    requests = Requests(subject.descriptor, args)
    for request, (q_len, kv_len) in enumerate(zip(requests.q_lens, requests.kv_lens, strict=True)):
        if q_len:
            first = requests.first[request]
            seen = oracle.shown(subject.descriptor, args, request, first, q_len, kv_len)
            yield request, slice(first, first + q_len), kv_len, seen


def plain(args: AttentionCall) -> Any:
    """The same call with scales of 1 and without sinks, as input of exact tests."""
    for name in ("k_scale", "v_scale", "q_scale"):
        if getattr(args, name, None) is not None:
            getattr(args, name).fill_(1.0)
    if args.sinks is not None:
        args.sinks.fill_(-math.inf)
    return args


def every_key_is_visited_once(subject: Subject, seed: int) -> list[str]:
    """With q = 0, all weights are equal; values that are one-hot over some keys then count how often each key was read."""
    if not variation.predictable(subject.descriptor):
        return []
    args = plain(subject.args(seed))
    for q in oracle.queries(args):
        q.zero_()
    views, wrong = list(request_views(subject, args)), []
    dim = args.o.shape[-1]
    for start in range(0, max([kv_len for _, _, kv_len, _ in views], default=0), dim):
        for request, _, kv_len, _ in views:
            if kv_len > start - dim:
                put_kv(subject.descriptor, args, request, v=_one_hot(subject.descriptor, args, kv_len, start))
        subject.run(args)
        for request, rows, kv_len, seen in views:
            want = _padded(seen[:, start : start + dim], dim)
            visits = (args.o[rows].float() * seen.sum(1)[:, None, None]).round()
            if kv_len > start and not bool((visits == want[:, None]).all()):
                wrong.append(f"request {request} (kv_len {kv_len}): keys from {start} on are not all read once")
    return wrong


def _one_hot(descriptor: Problem, args: AttentionCall, kv_len: int, start: int) -> Tensor:
    import torch

    heads, dim = descriptor.kv_heads, descriptor.dim_vo
    v = torch.zeros(kv_len, dim, device=args.o.device, dtype=oracle.request_kv(descriptor, args, 0)[1].dtype)
    count = max(0, min(kv_len - start, dim))
    v[torch.arange(start, start + count), torch.arange(count)] = 1
    return v[:, None].expand(-1, heads, -1)


def _padded(seen: Tensor, width: int) -> Tensor:
    import torch

    return torch.nn.functional.pad(seen.float(), (0, width - seen.shape[1]))


def a_needle_is_found(subject: Subject, seed: int) -> list[str]:
    """K contains codes of +-1, and q is so close to one of them that o must equal the value of that key bit for bit."""
    descriptor = subject.descriptor
    if descriptor.logits_soft_cap > 0 or descriptor.scale <= 0 or not variation.predictable(descriptor):
        return []  # a soft cap would reduce the score differences that the test needs
    args = plain(subject.args(seed))
    for q in oracle.queries(args):
        q.zero_()
    wanted = [plant(subject, args, *view[:3], view[3], seed) for view in request_views(subject, args)]
    subject.run(args)
    wrong = []
    for request, rows, want in wanted:
        if not same_bits(args.o[rows] + 0.0, want + 0.0):  # adding 0 makes -0 equal to 0
            bad = (args.o[rows] != want).any(-1).nonzero()[:3].tolist()
            wrong.append(f"request {request}: (row, head) {bad} did not find their key")
    return wrong


def plant(
    subject: Subject, args: AttentionCall, request: int, rows: slice, kv_len: int, seen: Tensor, seed: int
) -> tuple[int, slice, Tensor]:
    """Writes codes for the keys of a request, and a q per row that selects a random visible key. Yields (request, rows,
    expected o)."""
    import torch

    descriptor, device = subject.descriptor, args.o.device
    g = torch.Generator(device=device).manual_seed(seed * 1000 + request)
    heads, dim, group = descriptor.num_qo_heads, descriptor.dim_vo, descriptor.group_size
    before, _ = oracle.request_kv(descriptor, args, request)
    codes = torch.randint(0, 2, before.shape, generator=g, device=device).float() * 2 - 1
    put_kv(descriptor, args, request, k=codes.to(before.dtype))
    _, v = oracle.request_kv(descriptor, args, request)
    want = torch.zeros(rows.stop - rows.start, heads, dim, dtype=args.o.dtype, device=device)
    visible = seen.any(1)
    if bool(visible.any()):
        chance = torch.rand(want.shape[0], heads, kv_len, generator=g, device=device).masked_fill(~seen[:, None], -1.0)
        target, kv_head = chance.argmax(-1), torch.arange(heads, device=device) // group
        factor = _sharpness(codes, descriptor.scale)
        aimed, first = (codes[target, kv_head] * factor).to(args.o.dtype), 0
        for q in oracle.queries(args):
            q[rows] = aimed[..., first : first + q.shape[-1]]
            first += q.shape[-1]
        want = torch.where(visible[:, None, None], v[target, kv_head].to(args.o.dtype), want)
    return request, rows, want


def _sharpness(codes: Tensor, scale: float) -> float:
    """The smallest power of two that separates every code sufficiently from all others."""
    dim, by_head = codes.shape[-1], codes.transpose(0, 1)
    likeness = by_head @ by_head.transpose(1, 2)
    likeness.diagonal(dim1=1, dim2=2).fill_(-dim)
    gap = max(2.0, dim - float(likeness.max())) if codes.shape[0] > 1 else float(dim)
    return 2.0 ** math.ceil(math.log2(_NATS / (gap * scale)))


def equal_values_stay(subject: Subject, seed: int) -> list[str]:
    """With V = 1 every output is 1, so that lost weights and counted padding are detected."""
    args = subject.args(seed)
    for request in range(subject.descriptor.batch_size):
        _, v = oracle.request_kv(subject.descriptor, args, request)
        put_kv(subject.descriptor, args, request, v=v.clone().fill_(1.0))
    subject.run(args)
    report = numerics.check(subject.descriptor, args, subject.plan.sku, rows=64, seed=seed)
    return [f"V = 1: {report.worst:.3g} of the bound at {report.where}"] if not report.worst <= 1 else []


def one_key_gives_its_value(subject: Subject, seed: int) -> list[str]:
    """For a request with one key, o equals its V bit for bit if the row attends to the key; otherwise o is 0 and lse
    is -inf."""
    descriptor = subject.descriptor
    if not variation.predictable(descriptor):
        return []
    pages = descriptor.kv_token_bound if not is_paged(descriptor) else min(
        descriptor.paged_kv.num_total_pages, descriptor.kv_index_bound
    )  # fmt: skip
    kv = [min(1, descriptor.request_token_bound) if request < pages else 0 for request in range(descriptor.batch_size)]
    args, wrong = plain(subject.args(seed, inputs.DrawnLengths(kv=kv))), []
    subject.run(args)
    for request, rows, _, seen in request_views(subject, args):
        _, v = oracle.request_kv(descriptor, args, request)
        repeated = v.repeat_interleave(descriptor.group_size, 1)
        want = (
            repeated.expand(rows.stop - rows.start, -1, -1).to(args.o.dtype) if v.shape[0] else 0 * args.o[rows].nan_to_num(0.0)
        )
        want = want.masked_fill(~seen.any(1)[:, None, None], 0.0) if v.shape[0] else want.abs()
        if not same_bits(args.o[rows] + 0.0, want + 0.0):
            wrong.append(f"request {request} with {v.shape[0]} keys")
    report = numerics.check(descriptor, args, subject.plan.sku, rows=64, seed=seed)
    return wrong if report.worst <= 1 else [*wrong, f"one key: {report.worst:.3g} of the bound at {report.where}"]


def _unused(subject: Subject, args: AttentionCall) -> dict[str, Tensor]:
    """For each pool, a mask of the slots without a token of a request."""
    import torch

    descriptor, found = subject.descriptor, {}
    paged = is_paged(descriptor)
    for name in oracle.pools(args) if paged else ("k", "v"):
        tensor = getattr(args, name)
        found[name] = torch.ones(tensor.shape[:-1], dtype=torch.bool, device=tensor.device)
        if not paged:
            found[name][: int(args.kv_indptr[-1])] = False
            continue
        by_token = oracle.by_token(found[name], descriptor)
        for request in range(descriptor.batch_size):
            by_token[oracle.token_places(descriptor, args, request)] = False
    if hasattr(args, "key_params") and args.key_params is not None:
        of_keys = torch.ones(args.key_params.shape[1:], dtype=torch.bool, device=args.o.device)
        for request in range(descriptor.batch_size):
            of_keys[oracle.key_places(descriptor, args, request)] = False
        found["key_params"] = of_keys
    return found


def _fill(tensor: Tensor, where: Tensor, value: float) -> None:
    """Fills through an integer view, because torch cannot fill 8-bit floats."""
    import torch

    if not tensor.is_floating_point():
        tensor.masked_fill_(where, -(2**31) if value < 0 else int(value))
        return
    stored = bits(torch.full((1,), value, device=tensor.device).to(tensor.dtype))  # NaN if too large for f8
    tensor.view(stored.dtype).masked_fill_(where[..., None], int(stored))


def what_is_unused_does_not_matter(subject: Subject, seed: int) -> list[str]:
    """Unused pages, slots after a length, workspace and outputs do not affect results, even if they are NaN, zero, large or
    infinite."""
    args = subject.args(seed)
    unused, wrong = _unused(subject, args), []
    subject.run(args, subject.workspace(0xFF))
    want = outputs(subject.descriptor, args)
    for fill, byte in ((0.0, 0x00), (3e4, 0x7F), (-math.inf, 0xFC)):
        for name, free in unused.items():
            _fill(getattr(args, name), free, fill)
        for out in want:
            getattr(args, out).fill_(fill)
        subject.run(args, subject.workspace(byte))
        wrong += [
            f"{name} changed with {fill} in what is unused"
            for name, new in outputs(subject.descriptor, args).items()
            if not same_bits(new, want[name])
        ]
    return wrong


CHECKS = (
    every_key_is_visited_once,
    a_needle_is_found,
    equal_values_stay,
    one_key_gives_its_value,
    what_is_unused_does_not_matter,
)
SEEDS = random.Random(0).sample(range(10**6), 64)
