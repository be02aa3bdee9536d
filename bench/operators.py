"""The README's table of operators: status, and the recorded speed relative to the fastest peer of the same run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from bench.records import RESULTS

Record = dict[str, Any]
Pair = tuple[Record, list[Record]]
HEAD = ["| operator | plan | CUDA kernels | measured | speed-up over the fastest peer |", "|---|---|---|---|---|"]
ANY, HOPPER = "sm_80 and later", "sm_90a only"
TUNED = f"{ANY}, tuned for sm_90a"
RANKS = f"{ANY}, with NCCL"
PRODUCTS = "sm_90a; 4-bit and fp8 weights since sm_80, others there by cuBLASLt"
GROUPS = "sm_90a; 16-bit rows since sm_80"


class Line(NamedTuple):
    """One line of the table. tests/bench/test_operators.py checks plans and status against the registry."""

    operator: str
    plan: str
    status: str
    figures: Callable[[], tuple[str, str]]
    group: str = ""


def record(kind: str) -> Record:
    found: Record = json.loads((RESULTS / f"{kind}.json").read_text())
    return found


def spread(values: Iterable[float], form: str) -> str:
    """A range as `0.77 to 1.00`; a single value if both ends print the same."""
    told = sorted(values)
    low, high = form.format(told[0]), form.format(told[-1])
    return low if low == high else f"{low} to {high}"


def median_of(row: Record) -> tuple[str, float] | None:
    """The time by which a row is compared: in a graph if the problem is short, otherwise with a clean cold L2."""
    key = next((name for name in ("graph_us", "clean_us", "us") if name in row), None)
    return (key, row[key]["median"]) if key else None


def beside(pairs: Iterable[Pair]) -> str:
    """The range of the speed-up over the fastest peer, and the peers that were the fastest in some row."""
    ratios, names = [], set()
    for ours, peers in pairs:
        key, us = median_of(ours) or ("", 0.0)
        best = min(((row[key]["median"], row["impl"]) for row in peers if key in row), default=None)
        if best is not None:
            ratios.append(best[0] / us)
            names.add(best[1].removesuffix(" (dense)"))
    return f"{spread(ratios, '{:.2f}')} ({', '.join(sorted(names))})" if ratios else "no peer was timed"


def prefills(parts: Iterable[str], dense: bool) -> list[Pair]:
    """Our rows over pages, or over contiguous K and V (dense), each with the peers of the same layout."""
    pairs = []
    for part in parts:
        of = record("prefill_uneven" if part == "uneven" else "prefill")
        for _, found in groupby(of[part], key=lambda row: row["shape"]):
            rows = [row for row in found if row["impl"].endswith("(dense)") == dense]
            ours = [row for row in rows if row["impl"].startswith("opfacade")]
            pairs += [(mine, [row for row in rows if row is not mine]) for mine in ours]
    return pairs


def prefill(parts: Iterable[str], dense: bool) -> tuple[str, str]:
    pairs = prefills(parts, dense)
    return f"{spread((ours['TFLOPs'] for ours, _ in pairs), '{:.0f}')} TFLOP/s", beside(pairs)


def shapes(kind: str) -> list[Pair]:
    pairs = []
    for _, found in groupby(record(kind)["rows"], key=lambda row: row["shape"]):
        rows = list(found)
        ours = next(row for row in rows if row["impl"] == "opfacade")
        pairs.append((ours, [row for row in rows if not row["impl"].startswith("opfacade")]))
    return pairs


def decode() -> tuple[str, str]:
    pairs = shapes("decode")
    read = spread((ours["of_ceiling"] for ours, _ in pairs if "clean_us" in ours), "{:.2f}")
    return f"{read} of the read bandwidth", beside(pairs)


def latent() -> tuple[str, str]:
    pairs = shapes("mla")
    part = spread((max(ours["of_product"], ours["of_reading"]) for ours, _ in pairs), "{:.2f}")
    return f"{part} of the nearer ceiling", beside(pairs)


def copied(word: str) -> tuple[str, str]:
    rows = [row for row in record("append")["rows"] if row["problem"].startswith(word) and "of_copying" in row]
    return f"{spread((row['of_copying'] for row in rows), '{:.2f}')} of the speed of a copy", beside(())


def problems(of: Record, words: tuple[str, ...]) -> Iterator[Pair]:
    """For each problem of a program record whose name begins with one of the words: our row and the peers' rows."""
    for name, found in groupby(of["rows"], key=lambda row: str(row["problem"])):
        if name.startswith(words):
            ours, *peers = (row | {"impl": row["who"]} for row in found)
            yield ours, peers


def programs(kind: str, *words: str) -> tuple[str, str]:
    """The names of these problems in a program record."""
    pairs = list(problems(record(kind), words))
    large = [ours["of_copying"] for ours, _ in pairs if "of_copying" in ours]
    return f"{spread(large, '{:.2f}')} of the speed of a copy", beside(pairs)


def _library(name: str) -> str:
    """`cuBLASLt` of "torch, cuBLASLt" and of "cuBLASLt, best of its algorithms"."""
    return name.removeprefix("torch, ").partition(",")[0]


def with_peers(rows: Iterable[Record]) -> list[Pair]:
    """Rows that include their peers; a peer with a wrong result has no time."""
    return [
        (row, [{"us": us, "impl": _library(name)} for name, us in row.get("peers", {}).items() if "median" in us])
        for row in rows
    ]


def sampling() -> tuple[str, str]:
    pairs = with_peers(record("sampling")["rows"])
    return f"{spread((row['us']['median'] for row, _ in pairs), '{:.0f}')} us", beside(pairs)


def products() -> tuple[str, str]:
    """Products of model layers; the speed is that of 256 rows or more, which compute most of the time."""
    pairs = with_peers(row for row in record("matmul")["rows"] if row["table"] != "sweep" and row["of_best_peer"] is not None)
    return f"{spread((row['TFLOPs'] for row, _ in pairs if row['rows'] >= 256), '{:.0f}')} TFLOP/s", beside(pairs)


def experts() -> tuple[str, str]:
    pairs = with_peers(record("moe")["rows"])
    return f"{spread((row['of_floor'] for row, _ in pairs), '{:.2f}')} of the nearer ceiling", beside(pairs)


def unrecorded() -> tuple[str, str]:
    return "not recorded", "not recorded"


LINES = (
    Line("paged prefill", "BatchPagedPrefillPlan", TUNED, lambda: prefill(("table", "lengths", "pages"), False)),
    Line("paged prefill, fp8 q", "BatchPagedPrefillPlan", HOPPER, lambda: prefill(("fp8",), False)),
    Line(
        "ragged prefill",
        "BatchRaggedPrefillPlan",
        TUNED,
        lambda: prefill(("table", "lengths", "uneven"), True),
    ),
    Line("ragged prefill, fp8 q", "BatchRaggedPrefillPlan", HOPPER, lambda: prefill(("fp8",), True)),
    Line("paged decode", "BatchPagedDecodePlan", TUNED, decode),
    Line("latent decode (MLA)", "BatchMlaDecodePlan", HOPPER, latent),
    Line("append to the paged cache", "PagedKvAppendPlan", ANY, lambda: copied("append")),
    Line("merging of attention states", "MergeStatesPlan", ANY, lambda: copied("merge")),
    Line("elementwise programs", "MapPlan", ANY, lambda: programs("maps", "map"), "elements"),
    Line("gated activations", "GatedActivationPlan", ANY, lambda: programs("maps", "silu", "swiglu"), "elements"),
    Line("rotary embedding (RoPE)", "RotaryPlan", ANY, lambda: programs("maps", "rope"), "elements"),
    Line("row programs (folds)", "FoldPlan", ANY, lambda: programs("rows", "sum"), "rows"),
    Line("RMS norm and layer norm", "NormPlan", ANY, lambda: programs("rows", "rms", "add", "layer"), "rows"),
    Line("softmax", "SoftmaxPlan", ANY, lambda: programs("rows", "softmax"), "rows"),
    Line("quantisation", "QuantizePlan", ANY, lambda: programs("rows", "quantise"), "rows"),
    Line("dequantisation", "DequantizePlan", ANY, lambda: programs("rows", "dequantise"), "rows"),
    Line("matrix products (GEMM)", "MatmulPlan", PRODUCTS, products),
    Line("grouped matrix products", "GroupedMatmulPlan", GROUPS, unrecorded),
    Line("MoE layers", "FusedMoePlan", GROUPS, experts),
    Line("collectives", "CollectivePlan", RANKS, unrecorded),
    Line("merge over a sharded cache", "MergeAcrossPlan", RANKS, unrecorded),
    Line("log-probabilities over a sharded vocabulary", "LogprobAcrossPlan", RANKS, unrecorded),
    Line("sampling over a sharded vocabulary", "SampleAcrossPlan", RANKS, unrecorded),
    Line("all-reduce with norm and quantisation", "AllReduceNormPlan", RANKS, unrecorded),
    Line("sampling", "SamplePlan", ANY, sampling, "tokens"),
    Line("filtered probabilities", "ProbabilitiesPlan", ANY, unrecorded, "tokens"),
    Line("logit adjustment", "AdjustLogitsPlan", ANY, unrecorded, "tokens"),
    Line("top-k", "TopKPlan", ANY, unrecorded, "tokens"),
    Line("draft verification", "VerifyDraftsPlan", ANY, unrecorded, "tokens"),
    Line("q/k norm, RoPE and append in one launch", "QkvPreparePlan", ANY, unrecorded),
    Line("expert routing", "RoutePlan", ANY, unrecorded),
    Line("sorting by expert", "MoeSortPlan", ANY, unrecorded),
    Line("gathering rows for experts", "MoeGatherPlan", ANY, unrecorded),
    Line("combining expert outputs", "MoeCombinePlan", ANY, unrecorded),
    Line("mask packing", "PackMaskPlan", ANY, unrecorded),
    Line("weight packing", "PackWeightsPlan", ANY, unrecorded),
    Line("weight unpacking", "UnpackWeightsPlan", ANY, unrecorded),
)


def _row(lines: list[Line]) -> str:
    """Operators of the same group, status and figures share a row."""
    names, plans = ", ".join(line.operator for line in lines), ", ".join(f"`{line.plan}`" for line in lines)
    return f"| {names} | {plans} | {lines[0].status} | {' | '.join(lines[0].figures())} |"


def table() -> list[str]:
    devices = {record(kind)["machine"]["device"] for kind in ("prefill", "decode", "mla", "append")}
    lines = [_row(list(found)) for _, found in groupby(LINES, key=lambda line: (line.group, line.status, line.figures()))]
    return [f"Measured on one {', one '.join(sorted(devices))}; each range covers the shapes in its record.", "", *HEAD, *lines]
