"""Figures in the text of pages: each is quoted from a record or is a fact of the code; every other figure is an error.

QUOTES are sentences with placeholders for values of a record, rounded as the format says. FACTS are sentences whose figure is a
bound, a setting or a definition, not a measurement. Regions that `bench.pages` writes, and the notebook, which is a dated log,
are not checked.
"""

import json
import re
from functools import cache
from pathlib import Path
from statistics import fmean

from opfacade import Plan, Preference, Target
from opfacade.bench.table import fastest, problems
from opfacade.plans.attention import BatchPagedPrefillDescriptor, PagedKvCacheDescriptor

ROOT = Path(__file__).resolve().parents[2]
_UNIT = r"(?:[un]?s|ms|min|minutes?|(?:micro|milli)?seconds?|hours?|[KMGT]i?B|[TG]B/s|TFLOP/s|tokens/s|%|percent|times|-?fold)"
FIGURE = re.compile(
    rf"(?<![\w.@^])\d[\d,]*(?:\.\d+)? ?{_UNIT}(?!\w)(?:/\w+)?|\bx\d+\.\d+"
    r"|(?<![\w.])\d+(?:\.\d+)?[x\u00d7](?= (?:as|faster|less|more|slower|speed|of))"
    r"|(?<![\w.])\d[\d,]* of \d[\d,]* (?:SKUs|tests|faults)|(?<![\w.])\d[\d,]* passed"
    r"|(?<![\w.])[01]\.\d+ of (?:the |its )?(?:peer|copy|read|speed)|\ba factor of \d|\btwice as (?:fast|slow)"
)
# A row of the table of tuning, which a separate test compares with its record.
TUNED = re.compile(r"^\| ((?:latent )?(?:decode|prefill) \d+x [^|]+?) \|(.+)\|$", re.MULTILINE)
_WRITTEN = re.compile(r"<!-- written by .*?<!-- end of .*?-->", re.DOTALL)


def pages():
    """{name: text as one line}, of every page written by hand."""
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "bench/README.md", *(ROOT / "docs").glob("*.md")]
    found += (ROOT / "docs/ops").glob("*.md")
    names = {str(path.relative_to(ROOT)): path for path in found}
    return {name: prose(path.read_text()) for name, path in sorted(names.items())}


def prose(text):
    """The page as one line, without generated regions and the table of tuning."""
    return " ".join(TUNED.sub("", _WRITTEN.sub("", text)).split())


def unheld(name, text):
    """Figures in a page's text that no quote and no fact covers, each with its surrounding words."""
    for sentence in [quote(source, words) for page, source, words in QUOTES if page == name] + FACTS.get(name, []):
        text = text.replace(sentence, " ... ")
    return [text[max(0, found.start() - 50) : found.end() + 20] for found in FIGURE.finditer(text)]


def quote(source, words):
    """A sentence with the values of its record."""
    return words.format_map(SOURCES[source]())


@cache
def _json(name):
    return json.loads((ROOT / name).read_text())


def _tuning(name):
    """Means of a record of `bench.tune`, in percent."""
    record = _json(f"tests/data/{name}.json")
    rows = record["rows"]
    saved = [1 - min(us for us, *_ in row["measured"].values()) / row["default_us"] for row in rows]
    return {
        "seconds": record["seconds"],
        "problems": len(rows),
        "best": 100 * fmean(saved),
        "won": 100 * fmean(row["gain"] for row in rows),
    }


def _bench():
    """Rows of the record of `opfacade bench`, and the problems that a peer wins."""
    timed = [[row for row in rows if "us" in row] for rows in problems(_json("bench/results/bench.json"))]
    both = [rows for rows in timed if any("sku" in row for row in rows) and any("sku" not in row for row in rows)]
    lost = [rows for rows in both if "sku" not in fastest(rows)]
    ours = [next(row["us"] for row in rows if "sku" in row) for rows in lost]
    return {"led": len(both) - len(lost), "of": len(both), "ours": ours, "theirs": [fastest(rows)["us"] for rows in lost]}


def _workspace():
    """GiB of the example in docs/design.md, without and with a limit on the tokens of a request."""
    cache = PagedKvCacheDescriptor(
        num_total_pages=30_000, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND"
    )

    def gib(**more):
        shape = {"batch_size": 1, "total_num_rows": 8192, "num_qo_heads": 32, "causal": True, "kv_split": 4096}
        descriptor = BatchPagedPrefillDescriptor(paged_kv=cache, **shape, **more)
        return Plan.select(descriptor, Preference(backend="cuda"), Target.parse("sm_90a")).workspace_size / 2**30

    return {"pool": gib(), "bounded": gib(max_kv_len=8192)}


def _compat():
    """Microseconds of plan() of 256 requests with index tensors on the device, ours and FlashInfer's."""
    of = _json("bench/results/compat.json")["us"]["256"]
    return {f"{who}_{what}": of[who][what]["plan_device"] for who in ("ours", "theirs") for what in ("decode", "paged_prefill")}


def _torch_ops():
    """Microseconds over Plan.run."""
    us = _json("bench/results/torch_ops.json")["us"]
    return {"op": us["op_over_run"], "functional": us["functional"] - us["run"]}


def _tokens():
    """Tokens per second with transformers 5.24."""
    rows = _json("bench/results/transformers.json")["rows"]
    return {f"{row['work']}_{row['attention']}": row["tokens_per_s"] for row in rows if "work" in row}


def _peer_tests():
    """How many of FlashInfer's own tests pass, fail and are refused."""
    return {"fail": 0} | _json("bench/results/flashinfer_tests.json")["all"]


def _compile():
    """Seconds of a build of one kernel."""
    walls = [row["wall_s"] for row in _json("bench/results/compile.json")["opfacade"]["alone"]]
    return {"least": min(walls), "most": max(walls)}


SOURCES = {
    "compile": _compile,
    "peer_tests": _peer_tests,
    "compat": _compat,
    "tokens": _tokens,
    "torch_ops": _torch_ops,
    "host": lambda: _json("bench/results/host.json"),
    "host_library": lambda: _json("bench/results/host_library.json"),
    "bench": _bench,
    "tune": lambda: _tuning("tune"),
    "tune_fitted": lambda: _tuning("tune_fitted"),
    "workspace": _workspace,
}
QUOTES = [
    (
        "README.md",
        "compile",
        "A kernel is compiled when it is first called, which takes {least:.1f} to {most:.1f} s on one core",
    ),
    (
        "docs/design.md",
        "host_library",
        "reduced memory use from {before[memory][process_MB]:.0f} MB to {after[memory][process_MB]:.0f} MB, and the time of a "
        "run with new tensors from {before[us][run_new]:.1f} us to {after[us][run_new]:.1f} us (see "
        "`bench/results/host_library.json`",
    ),
    (
        "docs/design.md",
        "host_library",
        "With a stubbed driver, a replayed run takes {after[us][run_same]:.1f} us, compared with {after[us][fast]:.1f} us on "
        "the fast path",
    ),
    ("docs/design.md", "workspace", "needs {pool:.1f} GiB, or {bounded:.2f} GiB with `max_kv_len=8192`"),
    (
        "docs/migrating.md",
        "compat",
        "takes {ours_decode:.0f} us for decode and {ours_paged_prefill:.0f} us for paged prefill; FlashInfer's plan() takes "
        "{theirs_decode:.0f} us for decode and {theirs_paged_prefill:.0f} us for paged prefill",
    ),
    (
        "docs/migrating.md",
        "peer_tests",
        "{pass} cases pass and no case fails. {refuse} cases use a feature that is rejected by name",
    ),
    (
        "docs/migrating.md",
        "peer_tests",
        "and {words} cases expect an error message with a different wording. In {wider} cases the call succeeds",
    ),
    (
        "docs/integrations.md",
        "tokens",
        "continuous batching generates {continuous_opfacade:.0f} tokens/s on opfacade and {continuous_sdpa:.0f} tokens/s on "
        "sdpa. Plain `generate` with 8 prompts produces {generate_opfacade:.0f} tokens/s on opfacade and "
        "{generate_sdpa:.0f} tokens/s on sdpa,",
    ),
    ("docs/torch_compile.md", "torch_ops", "A call to an op takes {op:.1f} us longer than `Plan.run`"),
    (
        "docs/torch_compile.md",
        "torch_ops",
        "a call to its functional form, which allocates the outputs, takes {functional:.0f} us longer",
    ),
    ("docs/using.md", "host", "telemetry costs a run only one counter update ({us[count]:.2f} us, [`host.json`]"),
    ("docs/measuring.md", "tune", "{problems} problems of six models"),
    ("docs/measuring.md", "tune", "`python -m bench.tune work.jsonl --rounds 40`, {seconds:.0f} s)"),
    ("docs/measuring.md", "tune", "The mean gain over the {problems} problems is {best:.1f} %."),
    ("docs/measuring.md", "tune", "win by more than the margin contribute {won:.1f} % of this gain"),
    ("docs/measuring.md", "tune_fitted", "in which the mean gain was {best:.1f} %"),
    ("docs/measuring.md", "bench", "Our kernels are the fastest for {led} of {of} problems."),
    ("docs/measuring.md", "bench", "8/1 heads ({ours[0]:.1f} us, fa2 {theirs[0]:.1f})"),
    ("docs/measuring.md", "bench", "8/1 heads ({ours[1]:.1f} us, fa3 {theirs[1]:.1f})"),
]
FACTS = {
    "docs/cache.md": ["| they are ended within 2 s |"],
    "CHANGELOG.md": [
        "marks what is known to no better than 10 %",
    ],
    "docs/design.md": [
        "The cache holds up to 4096 calls in total across all plans (8 MB at most).",
        "request with at least 32768 tokens and at least 4 times as many tokens as the batch has rows",
    ],
    "docs/measuring.md": [
        "half the width of the 95 % interval of the median",
        "until the noise is below 0.5 %, or 60 rounds have run",
        "faster by more than 3 % and by more than the noise of both",
        # tests/tune/test_measure.py checks these
        "two tuning runs agree on 98 % of the choices with a noise of 1 %, and on 99 % of the choices with a noise of 0.2 % "
        "(`tests/tune/test_measure.py`)",
        "with or without the margin of 3 %",
    ],
    "docs/quickstart.md": ["`.venv` takes about 2 GB of disk space with a CPU build of torch"],
    "docs/distributed.md": ["a single kernel performs each round (one exchange between the ranks) of up to 2 MB"],
    "docs/using.md": ["faster by more than 3 % and more than the noise"],
    "docs/ops/collective.md": ["a single kernel performs each round of up to 2 MB"],
    "docs/ops/cascade.md": ["copying a 2 GB tensor in the same run"],
    "docs/ops/kv_cache.md": ["copying a 2 GB tensor in the same run"],
}
