"""Tokens per second of transformers, its attention on opfacade and on peers: `python -m bench.transformers [--out FILE]`.

A Llama with random weights, bf16 on a GPU. generate: 8 prompts of 512 tokens, 128 new ones each, and the same left-padded.
continuous: 32 prompts of 64 to 1024 tokens, 64 new ones each, over the cache's own pages if the release provides them. Peers:
sdpa, and flash_attention_2 and 3 if they or the package `kernels` are installed. A peer that does not load or run has a row
with the reason. Before timing, the error of its logits against f32 must be at most 1.25 times that of sdpa. --small runs in
seconds on a CPU, to try the script.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import torch
import transformers

from bench import records
from opfacade.bench.measure import machine
from opfacade.errors import UnsupportedError
from opfacade.integrations.transformers import names, register, use_continuous_batching

PEERS = ("sdpa", "flash_attention_2", "flash_attention_3")
NEAR = 1.25
LARGE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 128, "vocab_size": 32000}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 128}
WORK = {"generate": (8, 512, 128), "padded": (8, 512, 128), "continuous": (32, 1024, 64)}
SMALL_WORK = {"generate": (2, 24, 4), "padded": (2, 24, 4), "continuous": (3, 40, 4)}


class NotRun(RuntimeError):
    """A request of continuous batching ended with an error."""


def model(small: bool, device: str, attention: str, dtype: torch.dtype) -> Any:
    """The same weights for every attention."""
    torch.manual_seed(1)
    heads = {"num_attention_heads": 4 if small else 16, "num_key_value_heads": 2 if small else 4}
    config = transformers.LlamaConfig(**(SMALL if small else LARGE), **heads, eos_token_id=None, pad_token_id=0)
    made = transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention, dtype=torch.float32)
    return made.to(device, dtype).eval()


def prompts(count: int, longest: int, vocab: int, even: bool) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    lengths = [longest if even else max(1, longest - (longest - longest // 16) * i // max(1, count - 1)) for i in range(count)]
    return [torch.randint(2, vocab, (n,), generator=generator).tolist() for n in lengths]


def padded(rows: list[list[int]], device: str) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def error(made: Any, exact: torch.Tensor, inputs: dict[str, torch.Tensor]) -> float:
    """Root mean square of the logits' error, in standard deviations of the logits in f32."""
    with torch.no_grad():
        found = made(**inputs).logits[inputs["attention_mask"].bool()].float()
    return float((found - exact).square().mean().sqrt() / exact.std())


def generated(made: Any, rows: list[list[int]], new: int, *, device: str) -> int:
    inputs = padded(rows, device)
    with torch.no_grad():
        made.generate(**inputs, max_new_tokens=new, do_sample=False)
    return new * len(rows)


def batched(made: Any, rows: list[list[int]], new: int) -> int:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    generation = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=None)
    small = {} if torch.cuda.is_available() else {"num_blocks": 64, "max_batch_tokens": 256}
    config = ContinuousBatchingConfig(**small)
    out = made.generate_batch(rows, generation_config=generation, continuous_batching_config=config, progress_bar=False)
    failed = [o.error for o in out.values() if o.error]
    if failed:
        raise NotRun(failed[0])
    return sum(len(o.generated_tokens) for o in out.values())


def rate(call: Any, repeats: int) -> dict[str, float]:
    """Tokens per second: median and minimum of the repeats, after one warm-up."""
    call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        tokens = call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(tokens / (time.perf_counter() - start))
    return {"tokens_per_s": round(statistics.median(found), 1), "least": round(min(found), 1)}


def timed(attention: str, call: Any, repeats: int) -> dict[str, Any]:
    """The rate, or the reason why a peer did not run."""
    try:
        return rate(call, repeats)
    except (NotRun, torch.OutOfMemoryError) as why:
        if attention == "opfacade":
            raise
        return {"why": str(why).partition("\n")[0]}


def for_batching(made: Any, attention: str) -> Any:
    """The model with the name of this attention for continuous batching."""
    if attention == "opfacade":
        return use_continuous_batching(made)
    if names().continuous.startswith("paged|"):
        made.set_attn_implementation(f"paged|{attention}")
    return made


def measured(attention: str, made: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    rows, work = [], SMALL_WORK if options.small else WORK
    for name, (count, longest, new) in work.items():
        given = prompts(count, longest, made.config.vocab_size, even=name == "generate")
        if name == "continuous":
            made = for_batching(made, attention)
        run = batched if name == "continuous" else partial(generated, device=options.device)
        row = {"work": name, "attention": attention, "prompts": count, "longest": longest, "new_tokens": new}
        rows.append(row | timed(attention, partial(run, made, given, new), options.repeats))
        print(rows[-1], flush=True)
    return rows


def judged(attention: str, options: argparse.Namespace, exact: torch.Tensor, limit: float) -> list[dict[str, Any]]:
    """The rows of one attention implementation, or one row with the reason why it did not run. A wrong result raises an
    error."""
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    try:
        made = model(options.small, options.device, attention, dtype)
    except (ImportError, ValueError, UnsupportedError) as why:
        print(f"{attention}: {why}", flush=True)
        return [{"attention": attention, "why": str(why).partition("\n")[0]}]
    found = error(made, exact, probe(options))
    if found > limit:
        raise RuntimeError(f"{attention}: error {found:.2e}, where {limit:.2e} is allowed")
    return [row | {"logits_error": found} for row in measured(attention, made, options)]


def probe(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    vocab = (SMALL if options.small else LARGE)["vocab_size"]
    return padded(prompts(3, 24 if options.small else 256, vocab, even=False), options.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU; writes nothing without --out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "transformers")
    options = parser.parse_args()
    out = records.place(options.out, "transformers", whole=not options.small)
    register()
    record: dict[str, Any] = {"machine": machine(options.device), "transformers": transformers.__version__, "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"].get("commit")
    inputs = probe(options)
    with torch.no_grad():
        exact = model(options.small, options.device, "sdpa", torch.float32)(**inputs).logits[inputs["attention_mask"].bool()]
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    limit = NEAR * max(error(model(options.small, options.device, "sdpa", dtype), exact, inputs), 1e-5)
    for attention in ("opfacade", *PEERS):
        record["rows"] += judged(attention, options, exact, limit)
        records.write(out, record)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
