"""Harness of mixtures of experts: sorting each row in Python gives the expected choices; the weights of these choices have
bounds, and positions must be exact."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from opfacade.plans._matmul.scaling import BLOCK
from opfacade.plans.moe import (
    FusedMoeArgs,
    FusedMoeDescriptor,
    MoeCombineArgs,
    MoeCombineDescriptor,
    MoeGatherArgs,
    MoeGatherDescriptor,
    MoeSortArgs,
    MoeSortDescriptor,
    RouteArgs,
    RouteDescriptor,
)
from opfacade.programs import bound
from opfacade.programs.ball import Ball
from opfacade.select.registry import examples
from opfacade.testing.batches import Batches, Campaign, changed
from opfacade.testing.bounds import Bounded, Report, compare, constants, join
from opfacade.testing.families._matmul_weights import draw_weight
from opfacade.testing.families._moe_batches import CombineBatches, GatherBatches
from opfacade.testing.families._moe_layer import layer_of, own
from opfacade.testing.families._routing import choice_report, weights_of
from opfacade.testing.harness import Amount, Harness, HasLengths, Ran, Sample, kept, valid_part

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.testing.inputs import Draw
    from opfacade.testing.subject import Subject


class RouteHarness(Harness):
    unit = "total_num_rows"

    def inputs(self, draw: Draw) -> None:
        """Logits of ordinary size with ties; a few rows contain NaN and infinities."""
        logits = draw.values["logits"]
        drawn = (draw.normal(logits.shape) * 8).round() / 4
        logits.copy_(drawn)
        if "num_replicas" in draw.values:
            draw.values["replicas"].copy_(draw.integers(0, 999, draw.values["replicas"].shape))

    def judge(self, ran: Ran, sample: Sample) -> Report:
        call, problem, c = valid_part(ran.descriptor, ran.args), ran.descriptor, constants(ran.sku)
        report = join(kept(ran), choice_report(problem, call, c))
        if report.worst > 1:
            return report
        want = [weights_of(problem, call, c), *_exact_outputs(problem, call)]
        return join(report, compare(want, {one.name: getattr(call, one.name) for one in want}))


def _exact_outputs(d: RouteDescriptor, call: RouteArgs) -> list[Bounded]:
    """The expected loads and physical ids, computed from the actual choices."""
    import torch

    ids, found = (call.given_ids if d.ids_given else call.ids).tolist(), []
    if call.loads is not None:
        counts = [0] * d.experts
        for row in ids:
            for one in row:
                counts[one] += 1
        found.append(_exact("loads", torch.tensor(counts, dtype=torch.int32, device=call.logits.device)))
    if call.physical_ids is not None:
        table, count = call.replicas.tolist(), call.num_replicas.tolist()
        rows = [[table[one][at % count[one]] for one in row] for at, row in enumerate(ids)]
        want = torch.tensor(rows, dtype=torch.int32, device=call.logits.device).reshape(call.physical_ids.shape)
        found.append(_exact("physical_ids", want))
    return found


def _exact(name: str, want: Tensor) -> Bounded:
    return Bounded(name, want, want.double() * 0, want.double() * 0)


class SortHarness(Harness):
    def inputs(self, draw: Draw) -> None:
        d, shape = draw.descriptor, draw.values["ids"].shape
        draw.values["ids"].copy_(draw.integers(-1, d.experts, shape))

    def expected(self, descriptor: MoeSortDescriptor, args: MoeSortArgs, c: dict[str, float]) -> list[Bounded]:
        import torch

        d, flat = descriptor, args.ids.flatten().tolist()
        lists: list[list[int]] = [[] for _ in range(d.local)]
        for number, one in enumerate(flat):
            if 0 <= one - d.first_expert < d.local:
                lists[one - d.first_expert].append(number)
        order = [number for own in lists for number in own]
        ends = [sum(map(len, lists[:g])) for g in range(d.local + 1)]
        where = {number: at for at, number in enumerate(order)}
        padded = order + [0] * (len(flat) - len(order))
        made = {"indptr": ends, "order": padded, "x_rows": [n // d.top_k for n in padded]}
        made["places"] = [where.get(n, -1) for n in range(len(flat))]
        return [
            _exact(name, torch.tensor(value, dtype=torch.int32, device=args.ids.device).reshape(getattr(args, name).shape))
            for name, value in made.items()
        ]


class GatherHarness(Harness):
    unit = "total_num_rows"

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        return GatherBatches.drawn(subject, self.unit, campaign.needles, rng)

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        return _sized(op, rng, tokens)

    def expected(self, descriptor: MoeGatherDescriptor, args: MoeGatherArgs, c: dict[str, float]) -> list[Bounded]:
        want = args.out.double().clone()
        for at, number in enumerate(args.order.tolist()):
            factor = args.weights.flatten()[number].double() if descriptor.weighted else 1.0
            want[at] = args.x[number // descriptor.top_k].double() * factor
        if not descriptor.weighted:
            return [Bounded("out", want, want * 0, want * 0)]
        ball = bound.stored(Ball(want, 2 * c["u_acc"] * want.abs() + c.get("least", 2.0**-1000)), descriptor.dtype)
        return [Bounded("out", ball.v, 1.02 * ball.r, 1.02 * ball.r)]


class CombineHarness(Harness):
    unit = "total_num_rows"

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        return CombineBatches.drawn(subject, self.unit, campaign.needles, rng)

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        return _sized(op, rng, tokens)

    def inputs(self, draw: Draw) -> None:
        """Rows of y that no slot uses are NaN."""
        place, y = draw.values["places"], draw.values["y"]
        order = draw.uniform((place.numel(),)).argsort().to(place.dtype).view(place.shape)
        place.copy_(order.masked_fill(draw.uniform(place.shape) < 0.3, -1))
        taken = set(place.flatten().tolist())
        for row in range(len(y)):
            if row not in taken:
                y[row] = math.nan

    def expected(self, descriptor: MoeCombineDescriptor, args: MoeCombineArgs, c: dict[str, float]) -> list[Bounded]:
        d, total = descriptor, args.out.double() * 0
        total = total.new_zeros(total.shape)
        sizes = total.clone()
        for row, places in enumerate(args.places.tolist()):
            for slot, at in enumerate(places):
                if at >= 0:
                    part = args.y[at].double() * (args.weights[row, slot].double() if d.weighted else 1.0)
                    total[row], sizes[row] = total[row] + part, sizes[row] + part.abs()
        total, sizes = total * d.scale, sizes * abs(d.scale)
        if d.add:
            total, sizes = total + args.add.double(), sizes + args.add.double().abs()
        ball = bound.stored(Ball(total, (d.top_k + 3) * (c["u_acc"] * sizes + c.get("least", 2.0**-1000))), d.dtype)
        return [Bounded("out", ball.v, 1.02 * ball.r, 1.02 * ball.r)]


class FusedHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        most = min(40, tokens)
        sizes = {"total_num_rows": rng.randint(0, most), "hidden": rng.randint(1, most), "width": rng.randint(1, most)}
        if example.scaling == "block":
            sizes |= {name: BLOCK * rng.randint(1, 2) for name in ("hidden", "width")}
        return changed(example, **sizes)

    def inputs(self, draw: Draw) -> None:
        """Logits with ties, and positive scales."""
        if draw.descriptor.weight_format is not None:
            for name in ("up", "down"):
                draw_weight(draw, name)
        for name in ("up_scale", "down_scale"):
            if name in draw.values and draw.descriptor.weight_format is None:
                draw.values[name] = draw.values[name].abs() + 0.05
        if "logits" in draw.values:
            logits = draw.values["logits"]
            logits.copy_((draw.normal(logits.shape) * 8).round() / 4)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        d, args, c = ran.descriptor, ran.args, constants(ran.sku)
        report = _routed(d, args, own(c, "route")) if d.router is not None else Report(0.0, 0.0, "", 0)
        if report.worst > 1:
            return report
        rows = list(range(d.total_num_rows))
        if sample.rows is not None and sample.rows < len(rows):
            rows = sorted(random.Random(sample.seed).sample(rows, sample.rows))
        ball = layer_of(d, args, c, rows)
        want = ball.v.where(ball.r.isfinite(), args.out[rows].double())
        places = Bounded("out", want, 1.02 * ball.r, 1.02 * ball.r)
        return join(report, compare([places], {"out": args.out[rows]}, index_of=lambda at: [rows[at[0]], at[1]]))

    def amount(self, descriptor: FusedMoeDescriptor, lengths: HasLengths) -> Amount:
        d = descriptor
        of_row = d.top_k * d.width + d.shared_width
        return Amount(super().amount(d, lengths).bytes, 2.0 * d.total_num_rows * of_row * d.hidden * (d.columns + 1))

    def label(self, descriptor: Any, lengths: HasLengths) -> str:
        sizes = f"{descriptor.total_num_rows} x {descriptor.hidden} x {descriptor.width} {descriptor.dtype}"
        shared = f" shared {descriptor.shared_width}" if descriptor.shared_width else ""
        return f"{descriptor.op} {sizes} top {descriptor.top_k} of {descriptor.experts}{shared}"


def _routed(d: FusedMoeDescriptor, args: FusedMoeArgs, c: dict[str, float]) -> Report:
    """Checks the choice of experts and their weights."""
    problem: Any = d.steps()[0].problem
    call = RouteArgs(
        logits=args.logits, bias=args.router_bias, correction=args.correction, ids=args.chosen_ids, weights=args.chosen_weights
    )
    report = choice_report(problem, call, c)
    if report.worst > 1:
        return report
    return join(report, compare([weights_of(problem, call, c)], {"weights": args.chosen_weights}))


def _sized(op: str, rng: random.Random, tokens: int) -> Any:
    example: Any = rng.choice([example for example in examples() if example.op == op])
    return changed(example, total_num_rows=rng.randint(0, min(60, tokens)), hidden=rng.randint(0, min(300, tokens)))


HARNESSES: dict[str, Harness] = {
    "route": RouteHarness(),
    "moe_sort": SortHarness(),
    "moe_gather": GatherHarness(),
    "moe_combine": CombineHarness(),
    "fused_moe": FusedHarness(),
}
