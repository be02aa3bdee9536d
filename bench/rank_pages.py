"""Tables of docs/distributed.md, from the record of bench.distributed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from bench.operators import Record
from bench.ranks import model

NORM_PEERS, EXCHANGED = ("nccl all_reduce + norm", "symm_mem one_shot + norm"), "nccl packed all_to_all + merge"


TEXTS = {
    "norms": "All-reduce, residual, norm: `all_reduce_norm` with rows of 8 KB in bf16, beside an all-reduce and then our norm.",
    "exchanges": "`merge_across`, of which each rank keeps its heads, beside one packed all-to-all of NCCL and then our merge.",
    "draws": "`sample_across` of 131,072 tokens with top_k = 50 and top_p, beside a gather of logits and then our `sample`.",
    "prefills": "Causal prefill of one request (32 query heads, 8 KV heads, head_dim 128) with a gather of K and V before it, "
    "or beside it by groups of heads. A share of 1 is the time of all rows on one GPU divided by the number of ranks.",
}
ROUNDS = (
    "A round takes {wire.alone:.1f} us alone in its launch and {wire.behind:.1f} us behind another one, and a GPU receives "
    "{wire.gb_per_s:.0f} GB/s. From these constants, `python -m bench.ranks.model` predicts the rounds of the ops, without "
    "the work before and behind them. Other numbers of GPUs, and several hosts, have not been measured: each further peer is "
    "assumed to add 0.16 us, and a message to another host to take 10 us at 45 GB/s."
)


def lines(of: Record) -> list[str]:
    """The tables of a record, each after a sentence."""
    probes = of["probes"]
    tables = {
        "norms": norms(probes["all_reduce_norm"]["bytes"]),
        "exchanges": exchanges(probes["exchange"]["calls"]),
        "draws": draws(probes["sampling"]["rows"]),
        "prefills": prefills(probes["p10_prefill"]),
    }
    found = ["", *wrapped("Times are in us. In brackets is the time of the fastest peer in the row divided by ours.")]
    for name, table in tables.items():
        found += ["", *wrapped(TEXTS[name]), "", *table]
    return [*found, "", *predictions(probes["p2_rounds"]["fit"])]


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 128, break_long_words=False, break_on_hyphens=False)


def beside(ours: float, peers: list[float]) -> str:
    return f"{ours:.1f} ({min(peers) / ours:.2f})"


def norms(found: Record) -> Iterator[str]:
    yield "| bytes of a rank | one step | two steps | NCCL | symmetric memory |"
    yield "|---|---|---|---|---|"
    for size, row in found.items():
        theirs = [row[name]["us"] for name in NORM_PEERS]
        ours = [beside(row[f"all_reduce_norm {step}, peers"]["us"], theirs) for step in ("one_shot", "two_shot")]
        yield f"| {int(size):,} | {' | '.join([*ours, *[f'{us:.1f}' for us in theirs]])} |"


def exchanges(found: Record) -> Iterator[str]:
    yield "| tokens x heads x head_dim | bytes to each rank | ours | NCCL |"
    yield "|---|---|---|---|"
    heads = {"latent": "128 x 512", "grouped": "32 x 128"}
    for name, row in found.items():
        kind, tokens = name.split()
        theirs = row[EXCHANGED]["us"]
        ours = beside(row["merge_across, peers"]["us"], [theirs])
        yield f"| {tokens} x {heads[kind]} | {row['bytes_to_each']:,} | {ours} | {theirs:.1f} |"


def draws(found: Record) -> Iterator[str]:
    yield "| rows | ours | gather and sample |"
    yield "|---|---|---|"
    for rows, row in found.items():
        theirs = row["gather + sample"]["us"]
        yield f"| {rows} | {beside(row['sample_across']['us'], [theirs])} | {theirs:.1f} |"


def prefills(probe: Record) -> Iterator[str]:
    """of_commit: the commit of this table's figures, if the last run did not measure them."""
    yield "| tokens | form | us | share |"
    yield "|---|---|---|---|"
    for tokens, rows in probe["tokens"].items():
        shares = rows.get("of_ideal", {})
        for name, share in shares.items():
            if name not in ("all rows on one GPU", "gather"):
                yield f"| {int(tokens):,} | {name} | {rows[name]['us']:.0f} | {share:.2f} |"
    if "of_commit" in probe:
        yield ""
        yield f"This table was measured at commit {probe['of_commit'][:8]}."


def predictions(fit: Record) -> Iterator[str]:
    """The time model with the constants of the record."""
    wire = model.Wire(fit["a1"], fit["a2"], fit["b of a2"])
    yield from wrapped(ROUNDS.format(wire=wire))
    yield ""
    table = model.table(wire)
    yield f"| rounds of | {' | '.join(model.PLACES)} |"
    yield "|---" * (len(model.PLACES) + 1) + "|"
    for name, times in table.items():
        yield f"| {name} | {' | '.join(f'{us:.1f}' for us in times.values())} |"
