"""Host time of plan() and of a call, also of FlashInfer if it is installed: `python -m bench.compat [--out FILE]`.

plan_device, plan_host: microseconds of plan() with index tensors on the device and on the host. call_seen: from a wrapper's
arguments to the plan and its bundle, without the launch, with sizes of an earlier call; call_new: with new sizes.
flash_attn: the same for flash_attn_with_kvcache. theirs: FlashInfer's plan() with a synchronisation, because it copies on a
stream. On the CPU only opfacade is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import opfacade.compat.flashinfer as ours
from bench import records
from bench.host import microseconds
from opfacade.compat.attending import Ask, Pools, over_pages
from opfacade.compat.flash_attn.blocks import blocks
from opfacade.compat.flashinfer._attention.paged_call import Wanted, call_of
from opfacade.compat.flashinfer._attention.results import LseForm
from opfacade.compat.flashinfer._attention.scales import Given

HEADS, KV_HEADS, DIM, PAGE, LENGTH = 32, 8, 128, 16, 1000


class Batch(NamedTuple):
    """Page tables of `batch` requests of one length."""

    indptr: torch.Tensor
    indices: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, batch: int, device: torch.device | str) -> Batch:
        pages = -(-LENGTH // PAGE)
        i32 = {"dtype": torch.int32, "device": device}
        indptr = torch.arange(batch + 1, **i32) * pages
        last = torch.full((batch,), (LENGTH - 1) % PAGE + 1, **i32)
        return cls(indptr, torch.arange(batch * pages, **i32), last)


def wrappers(library: Any, batch: int, device: torch.device) -> dict[str, Callable[[str], None]]:
    """plan() of each wrapper of a library, with tables on the device or on the host."""
    bf16 = {"q_data_type": torch.bfloat16}
    buffer = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    decode = library.BatchDecodeWithPagedKVCacheWrapper(buffer, "NHD")
    paged = library.BatchPrefillWithPagedKVCacheWrapper(buffer, "NHD")
    ragged = library.BatchPrefillWithRaggedKVCacheWrapper(buffer, "NHD")
    places = {"device": device, "host": torch.device("cpu")}
    tables = {name: Batch.of(batch, place) for name, place in places.items()}
    rows = {name: torch.arange(batch + 1, dtype=torch.int32, device=place) * 100 for name, place in places.items()}
    keys = {name: torch.arange(batch + 1, dtype=torch.int32, device=place) * LENGTH for name, place in places.items()}
    sizes = (HEADS, KV_HEADS, DIM)
    return {
        "decode": lambda where: decode.plan(*tables[where], *sizes, PAGE, **bf16),
        "paged_prefill": lambda where: paged.plan(rows[where], *tables[where], *sizes, PAGE, causal=True, **bf16),
        "ragged_prefill": lambda where: ragged.plan(rows[where], keys[where], *sizes, causal=True, **bf16),
    }


def plans(library: Any, batch: int, device: torch.device, number: int) -> dict[str, dict[str, float]]:
    done = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    found = {}
    for name, plan in wrappers(library, batch, device).items():
        found[name] = {
            f"plan_{where}": microseconds(lambda plan=plan, where=where: (plan(where), done()), number)
            for where in ("device", "host")
        }
    return found


def calls(batch: int, device: torch.device, number: int) -> dict[str, dict[str, float]]:
    """The host time from the arguments of a call to its launch."""
    table = Batch.of(batch, device)
    wrapper = ours.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1, dtype=torch.uint8, device=device))
    wrapper.plan(*table, HEADS, KV_HEADS, DIM, PAGE, q_data_type=torch.bfloat16)
    planned = wrapper._told()
    pool = torch.empty(table.indices.shape[0], PAGE, KV_HEADS, DIM, dtype=torch.bfloat16, device=device)
    q = torch.empty(batch, HEADS, DIM, dtype=torch.bfloat16, device=device)
    wanted, scales = Wanted(Given(), LseForm(False)), itertools.count(1)

    def call(scale: float) -> Any:
        how = planned.how._replace(sm_scale=scale)
        return call_of("bench", how, q, Pools(pool, pool, "NHD"), planned.table, wanted)

    block_table = table.indices.view(batch, -1)
    lens = torch.full((batch,), LENGTH, dtype=torch.int32, device=device)

    def cached() -> Any:
        return over_pages(Ask("bench"), q, Pools(pool, pool, "NHD"), blocks("bench", pool, block_table, lens))

    return {
        "decode": {
            "call_seen": microseconds(lambda: call(0.1), number),
            "call_new": microseconds(lambda: call(next(scales) * 1e-3), max(1, number // 10)),
        },
        "flash_attn": {"call_seen": microseconds(cached, number)},
    }


def measure(batches: list[int], number: int) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: dict[str, Any] = {}
    for batch in batches:
        rows[str(batch)] = {"ours": plans(ours, batch, device, number), "calls": calls(batch, device, number)}
        if device.type == "cuda" and importlib.util.find_spec("flashinfer") is not None:
            import flashinfer

            rows[str(batch)]["theirs"] = plans(flashinfer, batch, device, max(1, number // 10))
            rows[str(batch)]["their_version"] = flashinfer.__version__
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--number", type=int, default=1000, help="calls of one timing, of which the best of seven counts")
    records.add_out(parser, "compat")
    records.add_commit(parser)
    options = parser.parse_args(argv)
    machine = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": records.commit(options.commit),
    }
    record = {"machine": machine, "us": measure(options.batch, options.number)}
    records.write(records.place(options.out, "compat"), record)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
