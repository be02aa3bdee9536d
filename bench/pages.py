"""Writes the measured times on pages from the records in bench/results: `python -m bench.pages [--check]`. Needs no GPU.

Each page of PAGES has a region between two marks, which only this script writes.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

from bench import code_pages, moe_pages, operators, program_pages, rank_pages, reliability, sampling_pages, sweep_pages
from bench.operators import Record, median_of, record
from bench.records import RESULTS

ROOT = Path(__file__).resolve().parents[1]
FIRST, LAST = "<!-- written by python -m bench.pages -->", "<!-- end of what bench.pages writes -->"
HEAD = [
    "| work | kernel | us | rate | share of the ceiling | fastest peer, us | speed-up over it |",
    "|---|---|---|---|---|---|---|",
]
WIDTH = 128


def stamp(kind: str, of: Record, page: Path, what: str) -> str:
    """Device, date, commit and file of a record, and the ceilings measured in its run."""
    machine = of["machine"]
    up = "../" * (len(page.relative_to(ROOT).parts) - 1)
    place = "results" if page.parent == RESULTS.parent else f"{up}bench/results"
    words = [machine.get("device") or machine.get("cpu", "?"), machine["date"], f"commit {machine['commit']}"]
    text = f"- {what}: {', '.join(words)}, [{kind}.json]({place}/{kind}.json){ceilings(of.get('ceilings', {}))}."
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def ceilings(of: Record) -> str:
    names = {"read_4GB_TBs": "reading {} TB/s", "bf16_TFLOPs": "bf16 GEMM {} TFLOP/s", "copy_TBs": "copying {} TB/s"}
    told = [text.format(round(of[name], 2)) for name, text in names.items() if name in of]
    return f"; ceilings measured in that run: {', '.join(told)}" if told else ""


def kernel(sku: str) -> str:
    """The implementation of a SKU and its kind of split: `split_kv, pieces`."""
    parts = sku.split("/")
    split = [fact.partition("=")[2] for fact in parts[7].split(",") if fact.startswith("split=")]
    return ", ".join([parts[4].partition("@")[0], *split])


def line(work: str, ours: Record, peers: Iterable[Record], rate: tuple[str, float] | None) -> str:
    key, us = median_of(ours) or ("", 0.0)
    timed = [(row[key]["median"], row["impl"]) for row in peers if key in row]
    best = min(timed, default=None)
    cells = [work, kernel(ours["sku"]), f"{us:.1f}"]
    cells += [rate[0], f"{rate[1]:.2f}"] if rate else ["", ""]
    cells += [f"{best[1].removesuffix(' (dense)')} {best[0]:.1f}", f"{best[0] / us:.2f}"] if best else ["", ""]
    return f"| {' | '.join(cells)} |"


def works(rows: Iterable[Record], name: str = "shape") -> Iterator[tuple[str, list[Record]]]:
    for work, group in groupby(rows, key=lambda row: str(row[name])):
        yield work, list(group)


def decode_lines(of: Record) -> Iterator[str]:
    for work, rows in works(of["rows"]):
        ours = next(row for row in rows if row["impl"] == "opfacade")
        rate = (f"{ours['clean_TBs']:.2f} TB/s", ours["of_ceiling"]) if "clean_us" in ours else None
        name = f"decode {work}{', in a graph' if 'graph_us' in ours else ''}"
        yield line(name, ours, (row for row in rows if not row["impl"].startswith("opfacade")), rate)


def prefill_lines(of: Record) -> Iterator[str]:
    product, told = of["ceilings"]["bf16_TFLOPs"], {row["shape"] for row in of.get("table", ())}
    for part in ("table", "lengths", "fp8", "uneven", "pages"):
        for work, rows in works(row for row in of.get(part, ()) if part != "lengths" or row["shape"] not in told):
            for mine in (row for row in rows if row["impl"].startswith("opfacade")):
                dense = mine["impl"].endswith("(dense)")
                if dense and part == "pages":
                    continue
                rivals = (r for r in rows if r is not mine and r["impl"].endswith("(dense)") == dense and "sku" not in r)
                rate = f"{mine['TFLOPs']:.0f} TFLOP/s", mine["TFLOPs"] / product
                yield line(f"prefill {named(work, dense)}", mine, rivals, rate)


def named(work: str, dense: bool) -> str:
    words = work.split()
    return " ".join(("dense" if word.startswith("page") or word == "rows" else word) if dense else word for word in words)


def batch_lines(of: Record) -> Iterator[str]:
    product = of["ceilings"]["bf16_TFLOPs"]
    for work, rows in works(of["rows"], "batch"):
        ours, *peers = rows
        yield line(f"prefill {work}", ours, peers, (f"{ours['TFLOPs']:.0f} TFLOP/s", ours["TFLOPs"] / product))


def attention(page: Path) -> list[str]:
    parts = {"decode": "Decode", "prefill": "Prefill", "prefill_uneven": "Prefill of keys wider than values"}
    parts |= {"batches": "Prefill of batches and variants"}
    found = {kind: record(kind) for kind in parts}
    stamps = [stamp(kind, found[kind], page, what) for kind, what in parts.items()]
    rows = [*decode_lines(found["decode"]), *prefill_lines(found["prefill"]), *prefill_lines(found["prefill_uneven"])]
    return [*stamps, "", *HEAD, *rows, *batch_lines(found["batches"])]


def mla(page: Path) -> list[str]:
    of = record("mla")
    rows = []
    for work, group in works(of["rows"]):
        ours, *peers = group
        rate = f"{ours['TFLOPs']:.0f} TFLOP/s, {ours['TBs']:.2f} TB/s", max(ours["of_product"], ours["of_reading"])
        rows.append(line(work, ours, peers, rate))
    return [stamp("mla", of, page, "Latent decode"), "", *HEAD, *rows]


def one_row(page: Path) -> list[str]:
    """A table that compares a decode with a prefill of one row per request, without a variant and with ALiBi."""
    of = record("one_row")
    lines = ["| requests | decode, us | prefill of one row | with ALiBi |", "|---|---|---|---|"]
    for row in of["rows"]:
        plain, alibi = row["over_decode"]
        lines.append(f"| {row['shape']} | {row['impls'][0]['us']['median']:.1f} | {plain:.2f} | {alibi:.2f} |")
    return [stamp("one_row", of, page, "Time over that of the decode"), "", *lines]


def moved(page: Path, word: str, what: str) -> list[str]:
    """A table of copy speeds: the rows of append.json whose problem begins with `word`."""
    of = record("append")
    rows = [row for row in of["rows"] if row["problem"].startswith(word)]
    head = ["| work | kernel | us | rate | share of copy rate |", "|---|---|---|---|---|"]
    lines = []
    for row in rows:
        rate = (f"{row['TBs']:.2f} TB/s", row["of_copying"]) if "TBs" in row else None
        graph = ", in a graph" if "graph_us" in row else ""
        lines.append(line(row["problem"] + graph, row, (), rate).removesuffix(" |  |  |") + " |")
    return [stamp("append", of, page, what), "", *head, *lines]


def programs(page: Path, kind: str, *words: str) -> list[str]:
    """A table of the problems of a record whose names begin with one of the words."""
    of = record(kind)
    lines = list(map(program_pages.line, program_pages.timed(of, words)))
    return [stamp(kind, of, page, "Programs"), "", *program_pages.HEAD, *lines]


def limits(page: Path) -> list[str]:
    """Every problem whose time needs an explanation, with the profiler's counters."""
    parts = {"maps": "Maps", "rows": "Rows", "sampling": "Sampling"}
    found = {kind: record(kind) for kind in parts}
    counters = f"In brackets, ncu's counters: {'; '.join(program_pages.LEGENDS)}; of a draw, DRAM over the bytes of the logits"
    stamps = [stamp(kind, found[kind], page, what) for kind, what in parts.items()]
    stamps.append(stamp("program_bounds", record("program_bounds"), page, counters))
    programs = [line for kind in ("maps", "rows") for line in program_pages.reasons(found[kind])]
    return [*stamps, "", *program_pages.REASONS, *programs, *sampling_pages.reasons(found["sampling"])]


def sampling(page: Path) -> list[str]:
    of = record("sampling")
    stamps = [stamp("sampling", of, page, "Logits with a sigma of 4, k = 50, p = 0.9")]
    draws = [*sampling_pages.HEAD, *sampling_pages.draws(of)]
    costs = [textwrap.fill(sampling_pages.ADJUSTMENTS, WIDTH), "", *sampling_pages.COSTS, *sampling_pages.costs(of)]
    return [*stamps, "", *draws, "", *costs]


def swept(page: Path, kind: str) -> list[str]:
    of = record(f"sweep_{kind}")
    return [
        "",
        stamp(f"sweep_{kind}", of, page, "Random problems"),
        "",
        *sweep_pages.lines(of["rows"], of.get("not_reached", 0)),
    ]


def matmul(page: Path) -> list[str]:
    of, tiles, free = record("matmul"), record("matmul_tiles"), record("matmul_invariance")
    rows, summary = sweep_pages.products(of), tiles["summary"]
    longer = f"{summary['mean_regret']:.1%} longer than the best"
    regret = f"Every tile for {summary['products']} products; on average, the chosen one takes {longer}"
    shares = free["summary"]
    of_time = f"{shares['mean_share']:.1%} of the time of the chosen kernel on average, {shares['worst_share']:.0%} at least"
    freedom = f"Batch invariance for {shares['products']} products; with any tile and order of k, the fastest takes {of_time}"
    stamps = [stamp("matmul", of, page, "Products"), stamp("matmul_tiles", tiles, page, regret)]
    stamps.append(stamp("matmul_invariance", free, page, freedom))
    layers = [row for row in rows if not row["random"] and row["ratio"] is not None]
    ahead = sum(row["ratio"] >= 1 for row in layers)
    peers = "torch (cuBLAS, cuBLASLt) and cuBLASLt's fastest algorithm"
    codes = record("codes")
    low_bit = [
        stamp("codes", codes, page, "Low-bit weights"),
        "",
        textwrap.fill(code_pages.TEXT, WIDTH),
        "",
        *code_pages.lines(codes),
    ]
    told = f"{len(layers)} products from model layers, compared with {peers}: ours is at least as fast in {ahead} of them."
    return [*stamps, "", textwrap.fill(told, WIDTH), *sweep_pages.lines([row for row in rows if row["random"]]), "", *low_bit]


def moe(page: Path) -> list[str]:
    of = record("moe")
    return [stamp("moe", of, page, "Layers of experts, with uniform routing"), "", *moe_pages.lines(of), *moe_pages.left(of)]


def parameters(page: Path) -> list[str]:
    """Tables of the time of a plan's run and of a model's forward pass, by kind of parameter."""
    host, forward = record("host"), record("forward")
    runs, models = host["us"]["kinds"], forward["ms"]
    calls, peer = models["buffer"]["calls"], models["sdpa_without_use_ops"]
    what = f"One token of a Llama of 16 layers with `use_ops`, {calls} runs of plans; {peer:.1f} ms without, with SDPA"
    on_host = host | {"machine": host["machine"] | {"device": f"a CPU with {host['machine']['cores']} cores"}}
    stamps = [stamp("host", on_host, page, "A run of a plan"), stamp("forward", forward, page, what)]
    rows = ["| parameters | a run, us | the forward, ms | with every call checked in full, ms |", "|---|---|---|---|"]
    for kind in ("trained_parameter", "frozen_parameter", "buffer"):
        cells = f"{runs[kind]:.1f} | {models[kind]['fast_paths']:.1f} | {models[kind]['checked_in_full']:.1f}"
        rows.append(f"| {kind.replace('_', ' ')} | {cells} |")
    return [*stamps, "", *rows]


def compiled(page: Path) -> list[str]:
    ours, theirs = record("compile"), record("compile_flashinfer")
    stamps = [
        stamp("compile", ours, page, "Ours"),
        stamp("compile_flashinfer", theirs, page, "FlashInfer"),
    ]
    together = ours["opfacade"]["together"]
    rows = [*ours["opfacade"]["alone"], together | {"module": f"all {together['modules']} at once"}, *theirs["flashinfer"]]
    lines = ["| what | wall s | CPU s | warm load ms | KB |", "|---|---|---|---|---|"]
    for row in rows:
        size = f"{row['bytes'] / 1024:.0f}" if "bytes" in row else ""
        lines.append(f"| {module(row['module'])} | {row['wall_s']} | {row['cpu_s']} | {row.get('warm_load_ms', '')} | {size} |")
    return [*stamps, "", *lines]


def over_ranks(page: Path) -> list[str]:
    of = record("distributed_links")
    return [stamp("distributed_links", of, page, f"{of['machine']['gpus']} GPUs, no multicast"), *rank_pages.lines(of)]


def module(text: str) -> str:
    """`paged_decode bf16 head_dim=128, split_kv@1` of a SKU id; anything else as it is."""
    parts = text.split("/")
    if len(parts) < 8:
        return text
    dtype = parts[5].split(",")[0].partition("=")[2]
    kept = ("head_dim", "heads", "split", "variant", "mask", "kv_scale", "rope")
    facts = [fact for fact in parts[7].split(",") if fact.partition("=")[0] in kept and not fact.endswith(("=none", "=false"))]
    short = ["variant" if fact.startswith("variant=") else fact for fact in facts]  # without the digest
    return f"{parts[1]} {dtype} {', '.join([*short, parts[4]])}"


PAGES: dict[str, Callable[[Path], list[str]]] = {
    "docs/ops/attention.md": attention,
    "docs/ops/mla.md": mla,
    "docs/ops/kv_cache.md": lambda page: moved(page, "append", "Append"),
    "docs/ops/cascade.md": lambda page: moved(page, "merge", "Merge"),
    "docs/ops/elementwise.md": lambda page: programs(page, "maps", "map"),
    "docs/ops/activation.md": lambda page: programs(page, "maps", "silu", "swiglu"),
    "docs/ops/rotary.md": lambda page: programs(page, "maps", "rope"),
    "docs/notebook/norm.md": lambda page: programs(page, "rows", "rms", "add", "layer"),
    "docs/notebook/limits.md": limits,
    "docs/ops/softmax.md": lambda page: [*programs(page, "rows", "softmax"), *swept(page, "softmax")],
    "docs/ops/quantize.md": lambda page: programs(page, "rows", "quantise", "dequantise"),
    "docs/ops/sampling.md": lambda page: [*sampling(page), *swept(page, "sampling")],
    "docs/ops/matmul.md": matmul,
    "docs/ops/moe.md": moe,
    "docs/ops/reduction.md": lambda page: [*programs(page, "rows", "sum", "segment"), *swept(page, "rows")],
    "docs/server.md": parameters,
    "docs/howto.md": one_row,
    "docs/distributed.md": over_ranks,
    "bench/README.md": compiled,
    "README.md": lambda page: [*operators.table(), *reliability.sums()],
}


def written(name: str) -> str:
    """The page with its region rewritten from the records."""
    page = ROOT / name
    before, mark, rest = page.read_text().partition(FIRST)
    _, last, after = rest.partition(LAST)
    if not (mark and last):
        raise SystemExit(f"{name}: expected {FIRST} and, behind it, {LAST}")
    return "\n".join([before + FIRST, *PAGES[name](page), LAST + after])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are what the records give")
    check = parser.parse_args().check
    pages = {ROOT / name: written(name) for name in PAGES}
    stale = [page for page, text in pages.items() if page.read_text() != text]
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is not what the records give' if check else 'written'}")
        if not check:
            page.write_text(pages[page])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
