"""The time of a forward pass, by the kind of parameters that are passed to its plans: `python -m bench.forward [--small] [--out
FILE]`.

A Llama with random weights decodes one token, with use_ops and its attention on opfacade. paths: milliseconds of a forward pass
with the fast paths of a call, and without them, so that each call is checked in full. calls: plan runs in one forward pass.
Without a GPU, the plans run on the reference, which has no fast path; then both times are the same, and nothing is recorded
without --out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from bench import records
from opfacade import plan as plans
from opfacade import telemetry
from opfacade.bench.measure import machine
from opfacade.core.candidate import NO_FAST_PATHS
from opfacade.integrations.transformers import register, use_ops

LARGE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "head_dim": 128, "vocab_size": 4096}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 128}
KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "trained_parameter": nn.Parameter,
    "frozen_parameter": lambda data: nn.Parameter(data, requires_grad=False),
    "buffer": nn.Buffer,
}


def model(small: bool, device: str, attention: str) -> Any:
    torch.manual_seed(1)
    heads = {"num_attention_heads": 4 if small else 8, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**(SMALL if small else LARGE), **heads, eos_token_id=None, pad_token_id=0)
    with torch.device(device):
        return transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention, dtype=torch.bfloat16).eval()


def turn_into(made: Any, kind: str) -> None:
    """Replaces every parameter of every module."""
    for module in made.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            setattr(module, name, KINDS[kind](value.data))


def milliseconds(work: Callable[[], Any], repeats: int, device: str) -> float:
    """The median time of forward passes; each is timed until the device has finished."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) * 1e3)
    return round(statistics.median(found), 4)


def without_fast_paths() -> list[tuple[Any, Any, Any]]:
    """Makes every selected plan check each call in full; returns the fast paths that the plans had."""
    had = [(plan, plan._fast, plan._replay) for plan in set(plans._selected.values())]
    put([(plan, NO_FAST_PATHS.fast, NO_FAST_PATHS.replay) for plan, _, _ in had])
    return had


def put(paths: list[tuple[Any, Any, Any]]) -> None:
    for plan, fast, replay in paths:
        object.__setattr__(plan, "_fast", fast)
        object.__setattr__(plan, "_replay", replay)


def runs() -> int:
    return sum(counted["runs"] for counted in telemetry.snapshot().values())


def measured(options: argparse.Namespace) -> dict[str, Any]:
    token = torch.ones(1, 1, dtype=torch.int64, device=options.device)
    made, peer = (model(options.small, options.device, name) for name in ("opfacade", "sdpa"))
    use_ops(made)

    @torch.no_grad()
    def forward(one: Any = made) -> Any:
        return one(token, use_cache=False).logits

    found: dict[str, Any] = {"sdpa_without_use_ops": milliseconds(lambda: forward(peer), options.repeats, options.device)}
    for kind in KINDS:
        turn_into(made, kind)
        for _ in range(5):
            forward()
        begun = runs()
        forward()
        calls = runs() - begun
        fast = milliseconds(forward, options.repeats, options.device)
        had = without_fast_paths()
        full = milliseconds(forward, options.repeats, options.device)
        put(had)
        found[kind] = {"calls": calls, "fast_paths": fast, "checked_in_full": full}
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU; writes nothing without --out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=50)
    records.add_commit(parser)
    records.add_out(parser, "forward")
    options = parser.parse_args(argv)
    register()
    out = records.place(options.out, "forward", whole=not options.small and options.device == "cuda")
    facts = machine(options.device) | {"date": time.strftime("%Y-%m-%d"), "commit": records.commit(options.commit)}
    for key, value in (found := measured(options)).items():
        print(key, value, flush=True)
    records.write(out, {"machine": facts, "transformers": transformers.__version__, "ms": found})


if __name__ == "__main__":
    main()
