"""Paged decode on one GPU compared with FlashInfer, in one run: `python -m bench.decode [--peers] [--out FILE]`, and `python -m
bench.decode --show RECORD --picture FILE` anywhere.

Random normal data, shuffled pages, L2 cold. Every output is checked against the SKU's error bound before it is timed. A row
contains the median with p10 and p90, in microseconds, the bytes of K and V per second, and this rate as a fraction of the read
ceiling of this run. L2 is cold in one of two ways: "dirty" (256 MB are written before each call, so the call also waits for
write-backs; bench/attention.py and most other benchmarks do this) and "clean" (after that, another 256 MB are read). Short
contexts are timed as a CUDA graph of many launches, each on separate pages, divided by their number. For all other rows, we and
a peer alternate (bench/interleaved.py). With `--variants`, short contexts are also timed with other numbers of clusters, which
only a pinned SKU selects.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench import attention, interleaved, records
from bench.attention import machine
from bench.interleaved import Contender
from opfacade import Plan, Preference, Target
from opfacade.core.dtypes import ITEMSIZE
from opfacade.plans._attention.paging import FP8
from opfacade.plans.attention import BatchPagedDecodeArgs, BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.timing import Timing, time_gpu
from opfacade.tune.tune import eligible

CUDA = Preference(backend="cuda")
IN_A_GRAPH = 40


@dataclass(frozen=True)
class Shape:
    name: str
    lengths: tuple[int, ...]
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    page: int = 16
    dtype: str = "bf16"
    split: str | int = "auto"
    short: bool = False

    @property
    def bytes(self) -> float:
        return 2.0 * sum(self.lengths) * self.kv_heads * self.dim * ITEMSIZE[self.dtype]

    def descriptor(self, copies: int = 1) -> BatchPagedDecodeDescriptor:
        pages = sum(-(-length // self.page) for length in self.lengths)
        cache = PagedKvCacheDescriptor(
            num_total_pages=pages * copies,
            page_size=self.page,
            num_kv_heads=self.kv_heads,
            head_dim=self.dim,
            dtype=self.dtype,
            layout="NHD",
        )
        wide: dict[str, Any] = {"q_dtype": "bf16", "kv_scale": "tensor"} if self.dtype in FP8 else {}
        return BatchPagedDecodeDescriptor(
            batch_size=len(self.lengths),
            num_qo_heads=self.heads,
            paged_kv=cache,
            kv_split=self.split,
            max_kv_indices=pages,
            **wide,
        )

    def args(self, descriptor: BatchPagedDecodeDescriptor) -> BatchPagedDecodeArgs:
        lengths = inputs.DrawnLengths(q=[1] * len(self.lengths), kv=list(self.lengths))
        return inputs.make_args(descriptor, seed=1, device="cuda", lengths=lengths)


def uniform(batch: int, kv: int, **facts: Any) -> Shape:
    extra = "".join(f" {key}{value}" for key, value in facts.items() if key != "short")
    return Shape(f"b{batch} kv{kv}{extra}", (kv,) * batch, **facts)


LONG = (
    uniform(1, 131072),
    uniform(8, 16384),
    uniform(16, 8192),
    uniform(64, 4096, page=1),
    uniform(64, 4096),
    uniform(64, 4096, page=64),
    uniform(64, 4096, heads=64),
    uniform(128, 2048),
    uniform(256, 1024),
    uniform(16, 4096, kv_heads=32),
    Shape("skew 65536 + 63x1024", (65536, *(1024,) * 63)),
)
VARIANTS = (
    uniform(64, 4096, dim=64),
    uniform(64, 4096, dim=256, heads=16),
    uniform(64, 4096, heads=28, kv_heads=4),
    uniform(64, 4096, heads=8),
    uniform(64, 4096, heads=40),
    uniform(64, 4096, heads=128),
    uniform(64, 4096, dtype="f8_e4m3"),
    uniform(64, 4096, dtype="f8_e5m2"),
    uniform(1, 131072, dtype="f8_e4m3"),
    uniform(64, 4096, dtype="f16"),
    uniform(64, 4096, split="off"),
    uniform(64, 4096, split=2048),
    uniform(256, 1024, split="off"),
)
SHORT = (
    uniform(1, 512, short=True),
    uniform(1, 1024, kv_heads=4, short=True),
    uniform(1, 2048, short=True),
    uniform(1, 4096, short=True),
    uniform(1, 4096, kv_heads=4, short=True),
    uniform(1, 4096, kv_heads=2, short=True),
    uniform(1, 8192, short=True),
)
SHARED = ("", "cluster=8", "teams=2", "teams=4", "cluster=2,teams=8")


def traces(folder: Path, batch: int = 64) -> Iterator[Shape]:
    """Batches from published request lengths: prompt plus answer of 64 requests, in the order of the trace."""
    for path in sorted(folder.glob("azure-llm-2023-*.csv")):
        with path.open() as lines:
            rows = list(csv.DictReader(lines))[:: max(1, 4000 // batch)][:batch]
        lengths = tuple(int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in rows)
        name = path.stem.rpartition("-")[2]
        yield Shape(f"{name} lengths b{len(lengths)} sum{sum(lengths)}", lengths)
        mean = sum(lengths) // len(lengths)
        yield Shape(f"as many bytes as {name}, b{len(lengths)} kv{mean}", (mean,) * len(lengths))


def checked(
    shape: Shape, descriptor: BatchPagedDecodeDescriptor, args: BatchPagedDecodeArgs, prefer: Preference = CUDA
) -> tuple[Plan[Any], float]:
    plan = Plan.select(descriptor, prefer)
    plan.run(args)
    report = numerics.check(descriptor, args, plan.sku, rows=8)
    if not report.worst <= 1:
        raise SystemExit(f"{shape.name}: wrong result, not timed: {report}")
    return plan, round(report.worst, 3)


def ours(shape: Shape) -> Contender:
    descriptor = shape.descriptor()
    args = shape.args(descriptor)
    plan, error = checked(shape, descriptor, args)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    row = {"impl": "opfacade", "sku": plan.sku.id, "error_over_bound": error}
    return Contender(row, lambda: plan.run(args, workspace), host=100)


def timings(run: Callable[[], object]) -> dict[str, Any]:
    return {"dirty_us": time_gpu(run).as_dict(), "clean_us": time_gpu(run, clean=True).as_dict()}


def on_own_pages(shape: Shape) -> list[BatchPagedDecodeArgs]:
    """The same problem many times, on disjoint pages of one pool."""
    args = shape.args(shape.descriptor(IN_A_GRAPH))
    pages = args.kv_indices.numel() if args.kv_indices is not None else 0
    order = torch.randperm(shape.descriptor(IN_A_GRAPH).paged_kv.num_total_pages, device="cuda", dtype=torch.int32)
    return [replace(args, kv_indices=order[i * pages : (i + 1) * pages], o=torch.empty_like(args.o)) for i in range(IN_A_GRAPH)]


def time_graph(runs: list[Callable[[], object]]) -> dict[str, Any]:
    """One replay contains all launches; returns the microseconds of one launch."""
    for run in runs:
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    timing = time_gpu(graph.replay)
    scale = 1 / len(runs)
    return Timing(timing.median * scale, timing.p10 * scale, timing.p90 * scale, timing.samples).as_dict()


def pinned(descriptor: BatchPagedDecodeDescriptor) -> dict[str, Preference]:
    """Preferences for the default and for its configs with several clusters, if they are eligible."""
    options = eligible(descriptor, CUDA, Target.current())
    return {
        o.candidate.config: CUDA.model_copy(update={"pin": o.sku.id}) for o in options if o.sku and o.candidate.config in SHARED
    }


def ours_short(shape: Shape, variant: str = "") -> dict[str, Any]:
    bundles, descriptor = on_own_pages(shape), shape.descriptor(IN_A_GRAPH)
    plan, error = checked(shape, descriptor, bundles[0], pinned(descriptor)[variant])
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    runs = [lambda a=args: plan.run(a, workspace) for args in bundles]
    once, impl = time_gpu(runs[0]).as_dict(), f"opfacade {variant}".strip()
    return {"impl": impl, "sku": plan.sku.id, "error_over_bound": error, "graph_us": time_graph(runs), "dirty_us": once}


def flashinfer_run(shape: Shape, args: BatchPagedDecodeArgs, scratch_mb: int = 384) -> Callable[[], object]:
    import flashinfer

    scratch = torch.empty(scratch_mb << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(scratch, "NHD", use_tensor_cores=True, backend="fa2")
    table = (args.kv_indptr, args.kv_indices[: args.kv_indptr[-1]].contiguous(), args.last_page_len)
    dtypes = {"q_data_type": args.q.dtype, "kv_data_type": args.k_data.dtype}
    wrapper.plan(*table, shape.heads, shape.kv_heads, shape.dim, shape.page, **dtypes)
    scales = {} if args.k_scale is None else {"k_scale": float(args.k_scale), "v_scale": float(args.v_scale)}
    return lambda: wrapper.run(args.q, (args.k_data, args.v_data), out=args.o, **scales)


def hold_peer(descriptor: BatchPagedDecodeDescriptor, args: BatchPagedDecodeArgs, run: Callable[[], object]) -> float:
    args.o.fill_(float("nan"))
    run()
    return attention.hold_peer(descriptor, args)


def peer_short(shape: Shape) -> dict[str, Any]:
    bundles = on_own_pages(shape)
    runs = [flashinfer_run(shape, args, 32) for args in bundles]
    error = hold_peer(shape.descriptor(IN_A_GRAPH), bundles[0], runs[0])
    once = time_gpu(runs[0]).as_dict()
    return {"impl": "flashinfer-fa2", "error_over_bound": error, "graph_us": time_graph(runs), "dirty_us": once}


def peer(shape: Shape) -> Contender:
    descriptor = shape.descriptor()
    args = shape.args(descriptor)
    run = flashinfer_run(shape, args)
    row = {"impl": "flashinfer-fa2", "error_over_bound": hold_peer(descriptor, args, run)}
    return Contender(row, run, host=50)


def ceilings() -> dict[str, float]:
    """TB/s of a library's reduction over 2 GB and 4 GB, as the ceiling for reading; and the time of an empty launch in a graph,
    in us."""
    x = torch.randn(2**31, device="cuda", dtype=torch.bfloat16)
    read = {size: x[: size << 29].view(torch.int32) for size in (2, 4)}
    found = {
        f"read_{size}GB_TBs": part.numel() * 4 / time_gpu(part.amax, samples=10).median * 1e-6 for size, part in read.items()
    }
    tiny = torch.zeros(32, device="cuda")
    found["tiny_kernel_graph_us"] = time_graph([lambda: tiny.add_(1)] * IN_A_GRAPH)["median"]
    found["tiny_kernel_us"] = time_gpu(lambda: tiny.add_(1)).median
    return {name: round(value, 3) for name, value in found.items()}


def with_rate(row: dict[str, Any], shape: Shape, ceiling: float) -> dict[str, Any]:
    rates = {
        name.replace("_us", "_TBs"): round(shape.bytes / row[name]["median"] * 1e-6, 3)
        for name in ("dirty_us", "clean_us")
        if name in row
    }
    best = max(rates.values())
    return {"shape": shape.name, **row, **rates, "of_ceiling": round(best / ceiling, 3)}


def shown(row: dict[str, Any]) -> str:
    short = {k: round(v["median"], 2) if isinstance(v, dict) else v for k, v in row.items() if k not in ("sku",)}
    return json.dumps(short)


def rows(shapes: list[Shape], peers: bool, ceiling: float, clusters: bool = False) -> Iterator[dict[str, Any]]:
    for shape in shapes:
        make, beside = (ours_short, peer_short) if shape.short else (ours, peer)
        found: list[Any] = [make(shape)]
        if clusters and shape.short:
            found += [ours_short(shape, variant) for variant in pinned(shape.descriptor(IN_A_GRAPH)) if variant]
        if peers:
            try:
                found.append(beside(shape))
            except Exception as error:  # a peer that does not support a shape is recorded with its reason
                yield {"shape": shape.name, "impl": "flashinfer-fa2", "failed": f"{type(error).__name__}: {error}"[:200]}
        for row in found if shape.short else interleaved.timed(found, interleaved.BOTH):
            yield with_rate(row, shape, ceiling)
        torch.cuda.empty_cache()


def picture(record: dict[str, Any], path: Path) -> None:
    """Bytes per second of every row, ours and peers, below the ceiling."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(row["shape"] for row in record["rows"]))
    figure = Figure(figsize=(9, 0.34 * len(shapes) + 1.4), layout="constrained")
    axes = figure.add_subplot()
    for impl, mark in (("opfacade", "o"), ("flashinfer-fa2", "s")):
        for kind, fill in (("clean_TBs", "full"), ("dirty_TBs", "none")):
            found = [(row[kind], shapes.index(row["shape"])) for row in record["rows"] if row["impl"] == impl and kind in row]
            if found:
                axes.plot(
                    *zip(*found, strict=True),
                    mark,
                    fillstyle=fill,
                    color="C0" if impl == "opfacade" else "C1",
                    label=f"{impl}, {kind[:5]} L2",
                )
    axes.axvline(record["ceilings"]["read_4GB_TBs"], color="0.4", linestyle="--", label="reading 4 GB")
    axes.set_yticks(range(len(shapes)), shapes)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("TB/s of K and V")
    figure.suptitle(f"Paged decode on one {record['machine']['device']}, 32/8 heads of 128, bf16, pages of 16 unless said")
    axes.legend(loc="lower left")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only", default="", help="shapes whose name this regular expression finds")
    parser.add_argument("--variants", action="store_true", help="other head dims, groups, splits and numbers of clusters too")
    parser.add_argument("--data", type=Path, help="folder with published request lengths")
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "decode")
    parser.add_argument("--show", type=Path, help="a record to draw instead of measuring")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    out = records.place(options.out, "decode", not options.only)
    if options.show:
        picture(json.loads(options.show.read_text()), options.picture)
        return
    record: dict[str, Any] = {"machine": machine(), "ceilings": ceilings(), "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    print(json.dumps(record["ceilings"]), flush=True)
    shapes = [*LONG, *(traces(options.data) if options.data else ()), *SHORT, *(VARIANTS if options.variants else ())]
    chosen = [shape for shape in shapes if re.search(options.only, shape.name)]
    for row in rows(chosen, options.peers, record["ceilings"]["read_4GB_TBs"], options.variants):
        record["rows"].append(row)
        print(shown(row), flush=True)
        records.write(out, record)
    if options.picture:
        picture(record, options.picture)


if __name__ == "__main__":
    main()
