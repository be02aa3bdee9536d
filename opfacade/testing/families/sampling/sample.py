"""Harness of sampling."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import operands_of
from opfacade.plans.sampling import SampleDescriptor
from opfacade.testing.bounds import Report, constants, join
from opfacade.testing.families.sampling.adjusted import Row
from opfacade.testing.families.sampling.judged import judged
from opfacade.testing.families.sampling.kept import Margins, RaceRow
from opfacade.testing.harness import Amount, Harness, HasLengths, Ran, Sample, valid_part
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor


class SampleHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        vocab = rng.choice((1, 5, 31, 64, 127, 1000, 1027, 5000, 12801))
        return SampleDescriptor(total_num_rows=rng.choice((1, 2, 5, 9)), vocab=vocab, **_fields(rng, vocab))

    def small(self, op: str, rng: random.Random) -> Any:
        vocab = rng.choice((1, 2, 3, 7, 33))
        return SampleDescriptor(total_num_rows=rng.randint(0, 4), vocab=vocab, **_fields(rng, vocab))

    def inputs(self, draw: Draw) -> None:
        for name, values in VALUES.items():
            if name in draw.values:
                draw.values[name] = values(draw, draw.values[name]).to(draw.values[name].dtype)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        """Judges every valid row, whichever sample is requested."""
        call, specs = valid_part(ran.descriptor, ran.args), operands_of(ran.descriptor)
        arrays = {name: array_of(getattr(call, name)) for name in specs}
        margins = Margins(**constants(ran.sku))
        report = Report(0.0, 0.0, "", 0)
        for at in range(len(arrays["token"])):
            values = {name: array[at] for name, array in arrays.items() if specs[name].shape[0].name == "total_num_rows"}
            values["logits"] = arrays["logits"][values["indices"]] if ran.descriptor.indices else values["logits"]
            got = {name: value for name, value in values.items() if specs[name].written}
            for name, ratio in judged(RaceRow(Row(ran.descriptor, values), margins), got).items():
                report = join(report, Report(ratio, ratio, f"{name}[{at}] got {got[name]}", int(arrays[name][at].size)))
        return report

    def amount(self, descriptor: SampleDescriptor, lengths: HasLengths) -> Amount:
        """The minimal cost: every operand is read or written once, and one Philox call per four tokens takes about 80 integer
        operations."""
        found = super().amount(descriptor, lengths)
        return Amount(found.bytes, 20.0 * descriptor.total_num_rows * descriptor.vocab)


def _fields(rng: random.Random, vocab: int) -> dict[str, Any]:
    """A random combination of filters, adjustments and outputs."""

    def odds(share: float) -> bool:
        return rng.random() < share

    bias, report = rng.choice(("none", "none", "dense", "sparse")), rng.choice(("none", "none", "logprob", "top_n"))
    found: dict[str, Any] = {name: odds(0.5) for name in ("top_k", "top_p", "min_p")}
    found |= {name: odds(0.25) for name in ("penalties", "bitmask", "num_valid")}
    found |= {"dtype": rng.choice(("f32", "bf16", "f16")), "order": rng.choice(("top_k_first", "joint")), "bias": bias}
    found |= {"temperature": odds(0.9), "stream": rng.choice((0, 0, 1, 2**32 - 1)), "report": report}
    found |= {"num_biases": rng.choice((1, 7, 40))} if bias == "sparse" else {}
    found |= {"top_n": rng.choice((1, 3, 20))} if report == "top_n" else {}
    found |= {"max_top_k": rng.randint(1, 300)} if found["top_k"] and odds(0.3) else {}
    found |= {"indices": True, "num_logits": rng.randint(1, 4)} if odds(0.2) else {}
    found |= {"probs_out": "filtered"} if odds(0.2) else {}
    return found | ({"soft_cap": rng.choice((5.0, 30.0))} if odds(0.2) else {})


def logits(draw: Draw, like: Tensor) -> Tensor:
    """Rows with any spread of logits; some have ties, NaN or infinities, and some have no candidate."""
    import torch

    rows = len(like)
    shape = (rows, 1)
    found = draw.normal(like.shape) * (6.0 * draw.uniform(shape) ** 2 + 0.1) + 20 * (draw.uniform(shape) - 0.5)
    found = torch.where(draw.uniform(shape) < 0.3, (found * 2).round() / 2, found)
    odd = draw.uniform(like.shape) < 0.1 * (draw.uniform(shape) < 0.3)
    special = torch.tensor([-torch.inf, torch.nan, -torch.inf, -0.0, 1e30], device=like.device)
    found = torch.where(odd, special[draw.integers(0, 4, like.shape)], found)
    found = torch.where(draw.uniform(like.shape) < 1e-3 * (draw.uniform(shape) < 0.1), torch.inf, found)
    return torch.where(draw.uniform(shape) < 0.05, -torch.inf, found)


def _one_of(*values: float) -> Any:
    def chosen(draw: Draw, like: Tensor) -> Tensor:
        import torch

        return torch.tensor(values, dtype=torch.float64, device=like.device)[draw.integers(0, len(values), like.shape)]

    return chosen


def _any_word(draw: Draw, like: Tensor) -> Tensor:
    return draw.integers(-(2**63), 2**63 - 1, like.shape)


def _biases(draw: Draw, like: Tensor) -> Tensor:
    import torch

    found = draw.normal(like.shape) * 3
    return torch.where(draw.uniform(like.shape) < 0.1, -torch.inf, found)


VALUES: dict[str, Any] = {
    "logits": logits,
    "temperature": _one_of(0.0, 0.3, 0.7, 1.0, 1.0, 2.5),
    "top_k": _one_of(-1, 0, 1, 2, 5, 40, 50, 300, 10**9),
    "top_p": _one_of(-0.1, 0.0, 1e-3, 0.3, 0.5, 0.9, 0.95, 0.999, 1.0, 1.5),
    "min_p": _one_of(-0.1, 0.0, 1e-6, 0.02, 0.1, 0.9, 1.0),
    "seed": _any_word,
    "offset": _any_word,
    "bitmask": lambda draw, like: draw.integers(-(2**31), 2**31, like.shape) | draw.integers(-(2**31), 2**31, like.shape),
    "bias": _biases,
    "bias_tokens": lambda draw, like: draw.integers(-2, draw.descriptor.vocab + 2, like.shape),
    "bias_values": _biases,
    "prompt_mask": lambda draw, like: draw.uniform(like.shape) < 0.2,
    "output_counts": lambda draw, like: draw.integers(0, 12, like.shape).sub(8).clamp(min=0),
    "repetition": _one_of(0.8, 1.0, 1.2),
    "frequency": _one_of(-0.5, 0.0, 0.7),
    "presence": _one_of(-0.5, 0.0, 0.7),
}


def array_of(tensor: Tensor) -> Any:
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
