"""Harnesses of filtered distributions and of adjusted logits."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from opfacade.core.descriptor import operands_of
from opfacade.core.dtypes import ROUNDOFF, UNDERFLOW
from opfacade.plans.sampling import AdjustLogitsArgs, AdjustLogitsDescriptor, ProbabilitiesDescriptor
from opfacade.testing.bounds import Bounded, Report, constants, join
from opfacade.testing.families.sampling.adjusted import Row, candidates, heated
from opfacade.testing.families.sampling.judged import probabilities_error
from opfacade.testing.families.sampling.kept import Margins, RaceRow
from opfacade.testing.families.sampling.race import Array
from opfacade.testing.families.sampling.sample import VALUES, array_of, logits
from opfacade.testing.harness import Harness, Ran, Sample, valid_part
from opfacade.testing.inputs import Draw

SIZES = (1, 5, 64, 1003, 9001)


class ProbabilitiesHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        return _distribution(rng, rng.choice((1, 2, 5)), rng.choice(SIZES))

    def small(self, op: str, rng: random.Random) -> Any:
        return _distribution(rng, rng.randint(0, 3), rng.randint(1, 9))

    def inputs(self, draw: Draw) -> None:
        for name in (name for name in VALUES if name in draw.values):
            draw.values[name] = VALUES[name](draw, draw.values[name]).to(draw.values[name].dtype)
        x = logits(draw, draw.values["x"])
        x = x.clamp(-60, 60).exp() if draw.descriptor.form == "renorm" else x
        draw.values["x"] = x.to(draw.values["x"].dtype)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        """Judges every valid row, whichever sample is requested."""
        call, report, margins = valid_part(ran.descriptor, ran.args), Report(0.0, 0.0, "", 0), Margins(**constants(ran.sku))
        arrays = {name: array_of(getattr(call, name)) for name in operands_of(ran.descriptor) if name != "num_valid"}
        for at in range(len(arrays["x"])):
            values = {name: array[at] for name, array in arrays.items()}
            ratio = _judged(ran.descriptor, values, margins)
            report = join(report, Report(ratio, ratio, f"{ran.descriptor.output}[{at}]", values["x"].size))
        return report


def _distribution(rng: random.Random, rows: int, vocab: int) -> ProbabilitiesDescriptor:
    fields: dict[str, Any] = {name: rng.random() < 0.5 for name in ("top_k", "top_p", "min_p")}
    fields |= {"form": rng.choice(("softmax", "renorm", "mask")), "order": rng.choice(("joint", "top_k_first"))}
    fields |= {"max_top_k": 40} if fields["top_k"] and rng.random() < 0.2 else {}
    fields["temperature"] = fields["form"] != "renorm" and rng.random() < 0.5
    fields |= {"dtype": rng.choice(("f32", "bf16", "f16")), "num_valid": rng.random() < 0.2}
    return ProbabilitiesDescriptor(total_num_rows=rows, vocab=vocab, **fields)


class _Uncapped:
    """The fields of a distribution descriptor in the form that `kept` uses."""

    soft_cap = 0.0

    def __init__(self, descriptor: ProbabilitiesDescriptor) -> None:
        self.vocab, self.order, self.max_top_k = descriptor.vocab, descriptor.order, descriptor.max_top_k


def _judged(descriptor: ProbabilitiesDescriptor, values: dict[str, Any], margins: Margins) -> float:
    x, out = values["x"], values[descriptor.output]
    row = RaceRow(Row(_Uncapped(descriptor), values | {"logits": x}), margins)
    if descriptor.form == "renorm":
        with np.errstate(all="ignore"):
            inside = x > 0
            row.a = np.log(np.where(inside, np.minimum(x, np.finfo(np.float32).max), 1).astype(np.float64))
        row.inside, row.any, row.greedy = inside, bool(inside.any()), False
    masked = descriptor.form == "mask"
    if not row.any:
        return 0.0 if np.all(out == (-np.inf if masked else 0)) else math.inf
    return _mask_error(row, x, out) if masked else probabilities_error(row, out)


def _mask_error(row: RaceRow, x: Array, out: Array) -> float:
    """The error of a masked row: kept logits must be unchanged, and the others must be -inf."""
    may, must = row.kept
    kept = out != -np.inf
    allowed, needed = np.zeros(out.size, bool), np.zeros(out.size, bool)
    allowed[row.order[may]], needed[row.order[must]] = True, True
    sound = np.all(allowed[kept]) and np.all(kept[needed]) and np.array_equal(out[kept], x[kept])
    return 0.0 if sound else math.inf


class AdjustHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        return _adjustment(rng, rng.choice((1, 2, 5)), rng.choice(SIZES))

    def small(self, op: str, rng: random.Random) -> Any:
        return _adjustment(rng, rng.randint(0, 3), rng.randint(1, 9))

    def inputs(self, draw: Draw) -> None:
        for name in (name for name in VALUES if name in draw.values):
            draw.values[name] = VALUES[name](draw, draw.values[name]).to(draw.values[name].dtype)

    def expected(self, descriptor: AdjustLogitsDescriptor, args: AdjustLogitsArgs, c: dict[str, float]) -> list[Bounded]:
        """Compares the f32 operations of each row exactly, or with a bound if there is a soft cap."""
        import torch

        arrays = {name: array_of(getattr(args, name)) for name in operands_of(descriptor) if name != "num_valid"}
        found = [_adjusted(descriptor, {n: array[at] for n, array in arrays.items()}) for at in range(len(arrays["logits"]))]
        want = torch.from_numpy(np.stack(found)) if found else torch.zeros(args.logits.shape, dtype=torch.float64)
        want = want.to(args.logits.device)
        if not descriptor.soft_cap:
            want = want.float().to(args.logits.dtype).double()  # rounded once
            return [Bounded("logits", want, torch.zeros_like(want), torch.zeros_like(want))]
        size = want.nan_to_num(0, 0, 0).abs()
        bound = (c["tanh"] + 1.02 * ROUNDOFF[descriptor.dtype]) * size + UNDERFLOW[descriptor.dtype]
        return [Bounded("logits", want, bound, bound)]


def _adjustment(rng: random.Random, rows: int, vocab: int) -> AdjustLogitsDescriptor:
    fields: dict[str, Any] = {name: rng.random() < 0.4 for name in ("penalties", "bitmask", "temperature", "num_valid")}
    fields |= {"bias": rng.choice(("none", "dense", "sparse")), "dtype": rng.choice(("f32", "bf16", "f16"))}
    fields |= {"num_biases": 7} if fields["bias"] == "sparse" else {}
    fields |= {"soft_cap": 5.0} if rng.random() < 0.3 else {}
    return AdjustLogitsDescriptor(total_num_rows=rows, vocab=vocab, **fields)


def _adjusted(descriptor: AdjustLogitsDescriptor, values: dict[str, Any]) -> Any:
    row = Row(descriptor, values)
    a, inside = candidates(row)
    temperature = row.number("temperature", 1.0)
    a = heated(a, temperature, bool(descriptor.soft_cap)) if temperature > 0 else a
    return np.where(inside, a + 0.0, -np.inf)
