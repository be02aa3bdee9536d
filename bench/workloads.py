"""Writes a workload of real models and real lengths: `python bench/workloads.py [--trace lengths.csv] --out work.jsonl`.

Each model serves requests whose prompts and answers are as long as those of the trace (columns ContextTokens and
GeneratedTokens), or drawn in the shape of a conversation service. For each model: decode steps of several batch sizes, a step
of chunked prefill, and whole prompts; each descriptor is as a server would create it, with the lengths of one step. Feed it to
`opfacade tune`, `bench`, `warmup` or `verify`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.demo.lengths import drawn, from_trace
from opfacade.plans._attention.paging import PagedKvCacheDescriptor, PagedLatentCacheDescriptor
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor
from opfacade.tools.workload import Lengths, Work

PAGE = 16
CHUNK = 2048


@dataclass(frozen=True)
class Model:
    """Attention of one layer on one GPU: heads after tensor parallelism. window: the window of its local layers; 0: none."""

    name: str
    heads: int
    kv_heads: int
    dim: int
    window: int = 0
    latent: bool = False


MODELS = (
    Model("Llama-3 8B", 32, 8, 128),
    Model("Llama-3 70B on 8", 8, 1, 128),
    Model("Qwen3 30B-A3B", 32, 4, 128),
    Model("Gemma, d256", 16, 8, 256),
    Model("Gemma, d256, local", 16, 8, 256, window=1024),
    Model("DeepSeek MLA on 8", 16, 1, 512, latent=True),
)
BATCHES = (1, 8, 32, 128)


@dataclass(frozen=True)
class Step:
    """Rows and keys of each request."""

    q: tuple[int, ...]
    kv: tuple[int, ...]


def decode_steps(lengths, rng: random.Random) -> Iterator[Step]:
    """Requests at random positions in their answers."""
    for batch in BATCHES:
        picked = rng.choices(lengths, k=batch)
        yield Step((1,) * batch, tuple(x.context + rng.randint(1, x.generated) for x in picked))


def prefill_steps(lengths, rng: random.Random) -> Iterator[Step]:
    """A chunk of one prompt after cached tokens; a chunk of several prompts; four whole prompts."""
    long = max(lengths[:256], key=lambda x: x.context).context
    yield Step((min(CHUNK, long),), (long,))
    several, left = [], CHUNK
    for x in rng.choices(lengths, k=64):
        if left:
            several.append((min(left, x.context), x.context))
            left -= several[-1][0]
    yield Step(tuple(q for q, _ in several), tuple(kv for _, kv in several))
    whole = [x.context for x in rng.choices(lengths, k=4)]
    yield Step(tuple(whole), tuple(whole))


def work(model: Model, step: Step, decode: bool) -> Work:
    pages = sum(-(-n // PAGE) for n in step.kv)
    fields = {"batch_size": len(step.kv), "num_qo_heads": model.heads, "window_left": model.window - 1 if model.window else -1}
    if model.latent:
        pool = PagedLatentCacheDescriptor(num_total_pages=pages, page_size=PAGE, dtype="bf16")
        return Work(BatchMlaDecodeDescriptor(paged_kv=pool, **fields), lengths=Lengths(kv=step.kv))
    sizes = {"num_total_pages": pages, "page_size": PAGE, "num_kv_heads": model.kv_heads, "head_dim": model.dim}
    fields["paged_kv"] = PagedKvCacheDescriptor(**sizes, dtype="bf16", layout="NHD")
    if decode:
        return Work(BatchPagedDecodeDescriptor(**fields), lengths=Lengths(kv=step.kv))
    descriptor = BatchPagedPrefillDescriptor(total_num_rows=sum(step.q), causal=True, **fields)
    return Work(descriptor, lengths=Lengths(q=step.q, kv=step.kv))


def works(lengths, seed: int) -> Iterator[tuple[Model, Work]]:
    for model in MODELS:
        rng = random.Random(f"{seed} {model.name}")
        for step in decode_steps(lengths, rng):
            yield model, work(model, step, decode=True)
        for step in () if model.latent else prefill_steps(lengths, rng):
            yield model, work(model, step, decode=False)


def line(item: Work) -> str:
    return json.dumps(
        {"descriptor": item.descriptor.model_dump(mode="json"), "lengths": item.lengths.model_dump(exclude_none=True)}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    lengths = from_trace(options.trace, 4096) if options.trace else drawn(4096, options.seed)
    found = list(works(lengths, options.seed))
    options.out.write_text("".join(line(item) + "\n" for _, item in found))
    print(f"{len(found)} problems of {len(MODELS)} models in {options.out}")


if __name__ == "__main__":
    main()
