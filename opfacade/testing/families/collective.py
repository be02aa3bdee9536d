"""Harnesses of ops over several ranks, for tools that run the ops on one rank without a group."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.dtypes import torch_dtype
from opfacade.select.registry import descriptor_types, examples
from opfacade.testing.batches import changed
from opfacade.testing.bounds import Bounded, Report, compare, join
from opfacade.testing.families._folds import FoldHarness, padding_of
from opfacade.testing.harness import Harness, Ran, Sample, harness_for, kept, valid_part
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor

_F32 = 2.0**-24
_F64 = 2.0**-50  # a bound on the relative error of a term and of an addition in f64


class CollectiveHarness(Harness):
    """With one rank, the output is the input."""

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        return changed(example, counts=(rng.randint(0, min(300, tokens)),), width=rng.randint(1, 300))

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        import torch

        want = args.x.double()
        return [Bounded("out", want, torch.zeros_like(want), torch.zeros_like(want))]


class MergeAcrossHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        return changed(example, total_num_rows=rng.randint(0, min(60, tokens)), states=rng.randint(1, 5))

    def inputs(self, draw: Draw) -> None:
        """Log-sum-exps of ordinary size; some states are empty, and their o is NaN."""
        values = draw.values
        shape = tuple(values["lse_part"].shape)
        empty = draw.uniform(shape) < 0.2
        values["lse_part"] = (draw.normal(shape) * 3).masked_fill(empty, float("-inf"))
        part = values["o_part"]
        values["o_part"] = part.float().masked_fill(empty[..., None], float("nan")).to(part.dtype)

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        """The bound consists of a rounding of o_part to exchange_dtype, sums with one term per state, and a rounding of the
        result."""
        import torch

        lse = args.lse_part.double()
        if args.sinks is not None:
            lse = torch.cat([lse, args.sinks.double().expand_as(lse[:1])])
        total = lse.logsumexp(0)
        weight = torch.where(lse == -torch.inf, 0.0, (lse - total).exp())[: len(args.o_part)]
        seen = torch.where(weight[..., None] == 0, 0.0, args.o_part.double())
        want, size = (weight[..., None] * seen).sum(0), (weight[..., None] * seen.abs()).sum(0)
        way = _unit(descriptor.exchange_dtype or descriptor.dtype)
        bound = size * ((way if descriptor.exchange_dtype else 0.0) + _F64 * (len(lse) + 4))
        if descriptor.exchange_dtype:
            bound = bound + len(lse) * _least(descriptor.exchange_dtype)
        stored = descriptor.out_dtype or descriptor.dtype
        bound = bound + (want.abs() + bound) * _unit(stored) + _least(stored)
        lse_bound = torch.nan_to_num(total.abs(), posinf=0.0) * _F32 + _F64 * (len(lse) + 4)
        return [Bounded("o", want, bound, bound), Bounded("lse", total, lse_bound, lse_bound)]


class LogprobAcrossHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        vocab = rng.randint(1, 700)
        return changed(example, total_num_rows=rng.randint(0, min(60, tokens)), vocab=vocab, shard=vocab + rng.randint(0, 3))

    def inputs(self, draw: Draw) -> None:
        """Some labels are outside the vocabulary."""
        shape, vocab = tuple(draw.values["label"].shape), draw.descriptor.vocab
        draw.values["label"] = (draw.uniform(shape) * (vocab + 2)).to(draw.values["label"].dtype) - 1

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        import torch

        logits = args.logits[:, : descriptor.vocab].double()
        lse, label = logits.logsumexp(1), args.label.long()
        known = (label >= 0) & (label < descriptor.vocab)
        hit = logits.gather(1, label.clamp(0, descriptor.vocab - 1)[:, None])[:, 0]
        want = torch.where(known, hit - lse, 0.0) * (-1.0 if descriptor.loss else 1.0)
        return [_logged("out", want, lse, descriptor.vocab), _logged("lse", lse, lse, descriptor.vocab)]


class AllReduceNormHarness(Harness):
    """With one rank the op is a norm, or a quantisation of the sum with the residual, which is exact."""

    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        return changed(example, total_num_rows=rng.randint(0, min(60, tokens)))

    def unowned(self, descriptor: Any, args: Any, name: str) -> Tensor | None:
        wanted = name == "scale" and descriptor.quant is not None
        return padding_of(args.scale, descriptor.quant, descriptor.total_num_rows) if wanted else None

    def judge(self, ran: Ran, sample: Sample) -> Report:
        d = ran.descriptor
        problem = d.normed_rows(d.total_num_rows) if d.norm != "none" else d.quantised_rows(d.total_num_rows)
        if d.norm != "none":
            return _FOLDS.judge(_as_call(ran, problem, {}, ran.before), sample)
        given = valid_part(d, replace(ran.args, **ran.before))
        total = _with_residual(given.x, given.residual)
        report = join(_same_as(total, ran), kept(ran))
        if problem is None:
            return report
        x = ran.args.x.clone()
        x[: len(total)] = total
        return join(report, _FOLDS.judge(_as_call(ran, problem, {"x": x}, {}), sample))


_FOLDS = FoldHarness()


def _as_call(ran: Ran, problem: Descriptor[Any], changed: dict[str, Tensor], before: Mapping[str, Tensor]) -> Ran:
    """The call of the fold that follows the sum."""
    given = {name: changed[name] if name in changed else getattr(ran.args, name) for name in operands_of(problem)}
    return Ran(problem, problem.args_type(**given), ran.sku, before)


def _with_residual(x: Tensor, residual: Tensor | None) -> Tensor:
    """The sum with the residual, rounded to its dtype."""
    return x if residual is None else (x.double() + residual.double()).to(x.dtype)


def _same_as(total: Tensor, ran: Ran) -> Report:
    """Without a norm, outputs that contain the sum with the residual are exact."""
    import torch

    d, after = ran.descriptor, valid_part(ran.descriptor, ran.args)
    holds = {"out": d.quant is None, "full_out": d.full_out, "residual": after.residual is not None}
    got = {name: getattr(after, name) for name, there in holds.items() if there}
    want, none = total.double(), torch.zeros(total.shape, dtype=torch.float64, device=total.device)
    return compare([Bounded(name, want, none, none) for name in got], got)


def _logged(name: str, want: Tensor, lse: Tensor, terms: int) -> Bounded:
    """The bound of the logarithm of a sum of positive f64 terms, rounded once to f32."""
    bound = want.abs() * _F32 * 1.01 + (lse.abs() + terms) * _F64 + 2.0**-133
    return Bounded(name, want, bound, bound)


def _least(dtype: str) -> float:
    """Half the spacing of subnormal numbers: the error of rounding a subnormal number."""
    import torch

    facts = torch.finfo(torch_dtype(dtype))
    return float(facts.tiny * facts.eps) / 2


def _unit(dtype: str) -> float:
    """Half the distance from 1 to the next larger number."""
    import torch

    return float(torch.finfo(torch_dtype(dtype)).eps) / 2


class SampleAcrossHarness(Harness):
    """One rank draws as `sample` does."""

    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        vocab = rng.choice((1, 5, 64, 127, 1000))
        return changed(example, total_num_rows=rng.randint(0, 9), vocab=vocab, shard=vocab + rng.randint(0, 3))

    def inputs(self, draw: Draw) -> None:
        harness_for("sample").inputs(draw)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        same = ("total_num_rows", "vocab", "dtype", "temperature", "top_k", "top_p", "min_p", "order", "max_top_k", "num_valid")
        fields = {name: getattr(ran.descriptor, name) for name in (*same, "stream")}
        problem: Descriptor[Any] = descriptor_types()["sample"](**fields)
        logits = ran.args.logits[:, : ran.descriptor.vocab]
        return harness_for("sample").judge(_as_call(ran, problem, {"logits": logits}, ran.before), sample)


HARNESSES: dict[str, Harness] = {
    "collective": CollectiveHarness(),
    "merge_across": MergeAcrossHarness(),
    "logprob_across": LogprobAcrossHarness(),
    "all_reduce_norm": AllReduceNormHarness(),
    "sample_across": SampleAcrossHarness(),
}
