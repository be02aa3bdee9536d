"""Index tensors with one or a few wrong elements, and the expected verdict of a judge."""

import random
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.testing import inputs
from opfacade.validation.rules import tables_of

CACHE = PagedKvCacheDescriptor(num_total_pages=40, page_size=4, num_kv_heads=1, head_dim=64, dtype="f16", layout="HND")
SPLIT = {"num_qo_heads": 2, "paged_kv": CACHE}
PROBLEMS = (
    BatchPagedDecodeDescriptor(batch_size=6, kv_split="off", **SPLIT),
    BatchPagedDecodeDescriptor(batch_size=6, kv_split=32, page_table="block", **SPLIT),
    BatchPagedDecodeDescriptor(batch_size=6, kv_split=32, max_kv_indices=24, **SPLIT),
    BatchPagedDecodeDescriptor(batch_size=6, kv_split=32, max_kv_len=30, **SPLIT),
    BatchPagedDecodeDescriptor(batch_size=6, kv_split=32, max_kv_len=30, page_table="block", **SPLIT),
    BatchPagedPrefillDescriptor(batch_size=5, total_num_rows=30, causal=True, kv_split="off", **SPLIT),
    BatchPagedPrefillDescriptor(batch_size=5, total_num_rows=30, causal=False, page_table="block", kv_split=32, **SPLIT),
    BatchRaggedPrefillDescriptor(
        batch_size=5, total_num_rows=30, total_kv_rows=90, num_qo_heads=2, num_kv_heads=1, head_dim=64, causal=True,
        kv_split="off", dtype="f16",
    ),
    PagedKvAppendDescriptor(batch_size=6, total_num_rows=25, paged_kv=CACHE),
    PagedKvAppendDescriptor(batch_size=6, total_num_rows=25, paged_kv=CACHE, page_table="block"),
)  # fmt: skip
WILD = (-1, 0, 1, 2, 5, 7, 39, 40, 41, 100, 1 << 20, -(1 << 31), (1 << 31) - 1, -40)


@dataclass(frozen=True)
class Corrupted:
    """A call with wrong elements; `args` before and after, and the (operand, flat position) that changed."""

    descriptor: object
    sound: object
    args: object
    changed: tuple


def index_names(descriptor):
    tables = tables_of(descriptor)
    return [name for name in tables.names if name]


def corrupt(descriptor, args, rng, most=2):
    """`args` with one or a few elements of its index tensors replaced, on copies of them."""
    copies = {name: getattr(args, name).clone() for name in index_names(descriptor)}
    changed = []
    for _ in range(rng.randint(1, most)):
        name = rng.choice([n for n in copies if copies[n].numel()])
        flat = copies[name].view(-1)
        at, value = rng.randrange(flat.numel()), rng.choice((*WILD, rng.randint(-(2**31), 2**31 - 1)))
        if int(flat[at]) != value:
            flat[at] = value
            changed.append((name, at))
    return Corrupted(descriptor, args, replace(args, **copies), tuple(changed))


def case(seed, device="cpu", problems=PROBLEMS):
    rng = random.Random(seed)
    descriptor = problems[seed % len(problems)]
    return corrupt(descriptor, _sound(descriptor, seed // len(problems) % 8, device), rng)


@lru_cache(maxsize=256)
def _sound(descriptor, seed, device):
    return inputs.make_args(descriptor, seed=seed, device=device)


def touched(case):
    """Requests that a changed element can concern: whose entries, or whose claimed rows or pages, it is among."""
    tables = tables_of(case.descriptor)
    found = set()
    for name, at in case.changed:
        place = tables.names.index(name)
        if place in (0, 1):
            found |= {at - 1, at} | _spanned(case, name, at)
        elif place == 2:
            found.add(at)
        elif name == "block_table":
            found.add(at // case.args.block_table.shape[1])
        else:
            bounds = case.sound.kv_indptr.tolist()
            found |= {r for r in range(tables.requests) if bounds[r] <= at < bounds[r + 1]}
    return found & set(range(tables.requests))


def _spanned(case, name, at):
    """Requests between an entry's old and new value: it is unknown which of them owns the rows in between."""
    old, new = (int(getattr(a, name)[at]) for a in (case.sound, case.args))
    low, high = min(old, new), max(old, new)
    v = getattr(case.sound, name).tolist()
    return {r for r in range(len(v) - 1) if v[r] <= high and v[r + 1] >= low}


def same_bits(a, b):
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
