"""Calls of sampling from a few values, and a slow sampler of one row in plain Python."""

import math
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

from opfacade import Plan, Target
from opfacade.backends.cuda.sampling import sample, top_k, verify
from opfacade.backends.cuda.sampling.split import THREADS, Split
from opfacade.plans.sampling import SampleArgs, SampleDescriptor

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
COLUMNS = {
    "temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32,
    "seed": torch.int64, "offset": torch.int64, "repetition": torch.float32, "frequency": torch.float32,
    "presence": torch.float32, "indices": torch.int32, "num_valid": torch.int32,
}  # fmt: skip


def call(logits, *, rows=None, **given):
    """(descriptor, args) on the CPU. given: operands (a number is used for all rows), or fields of the descriptor."""
    logits = torch.as_tensor(logits)
    rows = len(logits) if rows is None else rows
    tensors = {"logits": logits, "seed": 1, "offset": 0} | {n: v for n, v in given.items() if n in SampleArgs.__slots__}
    fields = {n: v for n, v in given.items() if n not in SampleArgs.__slots__ or isinstance(v, (bool, str))}
    for name in ("temperature", "top_k", "top_p", "min_p", "indices", "num_valid", "bitmask"):
        fields.setdefault(name, name in given)
    if "bias" in given and not isinstance(given["bias"], str):
        fields["bias"] = "dense"
    if "bias_tokens" in given:
        fields |= {"bias": "sparse", "num_biases": torch.as_tensor(given["bias_tokens"]).shape[1]}
    if "output_counts" in given:
        fields["penalties"] = True
        tensors = {"repetition": 1.0, "frequency": 0.0, "presence": 0.0} | tensors
        tensors.setdefault("prompt_mask", torch.zeros(rows, logits.shape[1], dtype=torch.bool))
    if fields["indices"]:
        fields["num_logits"] = len(logits)
    descriptor = SampleDescriptor(total_num_rows=rows, vocab=logits.shape[1], dtype=NAMES[logits.dtype], **fields)
    return descriptor, SampleArgs(**{n: column(v, n, rows) for n, v in tensors.items()}, **outputs(descriptor))


@contextmanager
def split_as(ctas, held):
    """Kernels split a row over so many CTAs, and hold so many bytes of it in each."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(sample, "ctas_of_stream", lambda *_: ctas))
        stack.enter_context(patch.object(sample, "kept_split", lambda *_: Split(THREADS, ctas)))
        for module in (sample, top_k, verify):
            stack.enter_context(patch.object(module, "ctas_of", lambda *_: ctas))
            if hasattr(module, "held_bytes"):
                stack.enter_context(patch.object(module, "held_bytes", lambda *_: held))
        yield


def column(value, name, rows):
    if isinstance(value, torch.Tensor):
        return value
    count = 1 if name == "num_valid" else rows
    return torch.tensor(value if isinstance(value, list) else [value] * count, dtype=COLUMNS.get(name, torch.float32))


def outputs(descriptor):
    """Filled with a value that no call writes."""
    kinds = {"i32": torch.int32, "u8": torch.uint8, "f32": torch.float32}
    return {
        name: torch.full([d.size for d in spec.shape], 77, dtype=kinds[spec.dtype])
        for name, spec in descriptor.operands().items()
        if spec.role == "out"
    }


def drawn(logits, **given):
    """The args after a run on the reference."""
    descriptor, args = call(logits, **given)
    Plan.select(descriptor, target=Target.cpu()).run(args)
    return args


def kept(probabilities, draws=400, **given):
    """The set of tokens drawn from one row of probabilities."""
    logits = torch.tensor([probabilities]).log().expand(draws, -1)
    return sorted(set(drawn(logits, offset=list(range(draws)), **given).token.tolist()))


def philox(counter, key):
    """Philox4x32-10 in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, third = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [third >> 32 ^ c[1] ^ k[0], third % 2**32, first >> 32 ^ c[3] ^ k[1], first % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def slow_token(logits, seed, offset, stream=0):
    """The winner of the race over a list of numbers."""
    seed, offset, keys = seed % 2**64, offset % 2**64, []
    for token, a in enumerate(logits):
        word = philox((token // 4, offset % 2**32, offset >> 32, stream), (seed % 2**32, seed >> 32))[token % 4]
        keys.append(a / math.log(2) - math.log2(-math.log1p(-(word + 0.5) / 2**32)))
    return keys.index(max(keys))
