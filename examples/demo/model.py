"""`--model tiny-llama`: transformers as a real client, which generates with continuous batching on opfacade and on sdpa."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opfacade import telemetry
from opfacade.base.installation import install
from opfacade.errors import UnsupportedError

MODELS = ("tiny-llama",)
PAGE = 16
NEW_TOKENS = 16
SEEDS = (7, 8)
# Lengths of the prompts: below, at and above a page, longer than a step, and two that share a prefix with the longest.
PROMPTS = (3, 90, 17, 33, 64, 16)
SHARED = 64
# Two tokens whose logits are nearer than this, in standard deviations of all logits, are a tie in bf16.
TIE = 0.08


@dataclass(frozen=True, slots=True)
class Generated:
    """The tokens for each prompt, and the total seconds."""

    attention: str
    tokens: list[list[int]]
    seconds: float

    @property
    def rate(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


def run(device: str, say: Callable[[str], None], json_path: Path | None = None) -> bool:
    """Generates twice and reports through `say`. True if the tokens are the same, except for ties in bf16.

    Raises UnsupportedError (OPF-I006) without transformers, and (OPF-I005) if its release does not permit attention of other
    packages.
    """
    transformers = _transformers()
    from opfacade.integrations.transformers import names, use_continuous_batching

    prompts = _prompts()
    say(f"tiny-llama with random weights on {device}, transformers {transformers.__version__}, attention {names().continuous}")
    say(f"{len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens, three of them with one prefix")
    telemetry.reset()
    ours = _generated("opfacade", use_continuous_batching(_model(device, "sdpa")), prompts)
    skus = {name: counted["runs"] for name, counted in telemetry.snapshot().items() if counted["runs"]}
    peer = _generated("sdpa", _model(device, _paged("sdpa")), prompts)
    parted = [number for number, pair in enumerate(zip(ours.tokens, peer.tokens, strict=True)) if pair[0] != pair[1]]
    wrong = [number for number in parted if not _tie(device, prompts[number], ours.tokens[number], peer.tokens[number])]
    for line in _report((ours, peer), prompts, skus):
        say(line)
    continued = [_continued(device, prompts[1:3]) for _ in range(2)]
    say(f"\nSampled with seeds {' and '.join(map(str, SEEDS))}")
    for tokens in continued[0]:
        say(f"  {' '.join(map(str, tokens))}")
    repeats = continued[0] == continued[1]
    say("the same tokens in a second run" if repeats else f"WRONG: other tokens in a second run: {continued[1]}")
    ties = f", {len(parted) - len(wrong)} part at a tie" if parted else ""
    say(f"\n{len(prompts) - len(parted)} of {len(prompts)} answers equal{ties}")
    if json_path is not None:
        json_path.write_text(
            json.dumps({"runs": [asdict(ours), asdict(peer)], "skus": skus, "wrong": wrong, "sampled": continued}, indent=1)
        )
    return not wrong and repeats


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        hint = f"{install('transformers')} brings it."
        message = f"demo.model: transformers expected to be installed, got {error}. {hint} [OPF-I006]"
        raise UnsupportedError(message, code="OPF-I006", op="demo", stage="model", hint=hint) from error
    return transformers


def _prompts() -> list[list[int]]:
    import torch

    generator = torch.Generator().manual_seed(3)
    made = [torch.randint(2, 128, (n,), generator=generator).tolist() for n in PROMPTS]
    longest = max(made, key=len)
    return [*made, longest[:SHARED] + made[0], longest[:SHARED] + made[2]]


def _model(device: str, attention: str, exact: bool = False) -> Any:
    """A model with the same weights for every attention. f32 on a CPU, bf16 on a GPU."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16 if device == "cpu" else 64}
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = LlamaConfig(**heads, **sizes, max_position_embeddings=512, eos_token_id=None, pad_token_id=0)
    model = LlamaForCausalLM._from_config(config, attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)  # with the initial weights, all logits are close to each other
    return model.to(device, torch.float32 if exact or device == "cpu" else torch.bfloat16).eval()


def _paged(attention: str) -> str:
    from opfacade.integrations.transformers import names

    return f"paged|{attention}" if names().continuous.startswith("paged|") else attention


@contextmanager
def _quiet() -> Any:
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _generated(name: str, model: Any, prompts: Sequence[list[int]]) -> Generated:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    page = "page_size" if hasattr(ContinuousBatchingConfig(), "page_size") else "block_size"
    config = ContinuousBatchingConfig(**{page: PAGE}, num_blocks=48, max_batch_tokens=64)
    generation = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
    start = time.perf_counter()
    with _quiet():
        out = model.generate_batch(
            list(prompts), generation_config=generation, continuous_batching_config=config, progress_bar=False
        )
    seconds = time.perf_counter() - start
    for failed in (o.error for o in out.values() if o.error):
        raise UnsupportedError(f"demo.model: {failed} [OPF-I006]", code="OPF-I006", op="demo", stage="model")
    return Generated(name, [o.generated_tokens for o in out.values()], seconds)


def _continued(device: str, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Samples tokens after each prompt, each with a separate seed; torch's generator is not used."""
    import torch

    from opfacade.integrations.transformers import sample

    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    controls = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
    with _quiet():
        out = _model(device, "opfacade").generate(
            ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=True, custom_generate=sample, seed=SEEDS, **controls
        )
    return [row[longest:] for row in out.tolist()]


def _tie(device: str, prompt: list[int], ours: list[int], theirs: list[int]) -> bool:
    """Whether the first difference of two answers is a tie: in f32, the logits of the two tokens are too close for bf16."""
    import torch

    if device == "cpu":
        return False
    place = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
    ids = torch.tensor([prompt + ours[:place]], device=device)
    with torch.no_grad():
        logits = _model(device, "sdpa", exact=True)(input_ids=ids).logits[0, -1]
    return bool((logits[ours[place]] - logits[theirs[place]]).abs() < TIE * logits.std())


def _report(runs: Sequence[Generated], prompts: Sequence[list[int]], skus: dict[str, int]) -> list[str]:
    answers = [
        f"  {len(prompt):>3} tokens -> {' '.join(map(str, found))}"
        for prompt, found in zip(prompts, runs[0].tokens, strict=True)
    ]
    ran = [f"  {count:>4} x {sku}" for sku, count in skus.items()]
    times = [f"  {found.attention:<9} {found.seconds:6.2f} s  {found.rate:7.0f} tokens/s" for found in runs]
    return ["\nTokens", *answers, "\nSKUs", *ran, "\nTime", *times]
