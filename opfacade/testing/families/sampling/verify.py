"""Harness of the verification of drafts. Acceptance must be exact; the token after the accepted drafts is judged as a separate
draw."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from opfacade.core.descriptor import operands_of
from opfacade.plans.sampling import VerifyDraftsDescriptor
from opfacade.testing.bounds import Report, constants, join
from opfacade.testing.families.sampling.race import minus_log2_exponential, words
from opfacade.testing.harness import Harness, Ran, Sample, valid_part
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("chain", "tree", "greedy", "coupled")
F32 = np.float32


class VerifyHarness(Harness):
    unit = "batch_size"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        return _problem(rng, rng.choice((1, 3, 8)), rng.choice((2, 5, 64, 1003, 9001)))

    def small(self, op: str, rng: random.Random) -> Any:
        return _problem(rng, rng.randint(0, 3), rng.choice((1, 2, 7)))

    def inputs(self, draw: Draw) -> None:
        _draw(draw)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        call = valid_part(ran.descriptor, ran.args)
        arrays = {name: getattr(call, name).cpu().numpy() for name in operands_of(ran.descriptor)}
        report, promised = Report(0.0, 0.0, "", 0), constants(ran.sku)
        for at in range(len(arrays["tokens"])):
            row = {name: array[at] for name, array in arrays.items() if name != "num_valid"}
            ratio = _judged(ran.descriptor, row, promised)
            report = join(report, Report(ratio, ratio, f"tokens[{at}] got {row['tokens'].tolist()}", row["tokens"].size))
        return report


def _problem(rng: random.Random, batch: int, vocab: int) -> VerifyDraftsDescriptor:
    kind = rng.choice(KINDS)
    fields: dict[str, Any] = {"stream": rng.choice((0, 5)), "num_valid": rng.random() < 0.2}
    if kind == "tree":
        fields |= {"threshold_acc": rng.choice((0.3, 1.0)), "threshold_single": rng.choice((0.1, 1.0))}
    return VerifyDraftsDescriptor(kind=kind, batch_size=batch, num_drafts=rng.choice((1, 3, 9)), vocab=vocab, **fields)


def _draw(draw: Draw) -> None:
    """Drafts that are often accepted; zeros in distributions; trees of any shape, with some invalid links."""
    import torch

    values, d = draw.values, draw.descriptor
    values["draft_tokens"] = draw.integers(-1, d.vocab + 1, values["draft_tokens"].shape).int()
    if "target_tokens" in values:
        values["target_tokens"] = draw.integers(0, d.vocab, values["target_tokens"].shape).int()
        same = draw.uniform(values["draft_tokens"].shape) < 0.8
        values["draft_tokens"] = torch.where(same, values["target_tokens"][:, :-1], values["draft_tokens"])
        return
    for name in ("seed", "offset"):
        values[name] = draw.integers(-(2**63), 2**63 - 1, values[name].shape)
    values["target_probs"] = _shares(draw, values["target_probs"])
    if d.kind == "chain":
        mixed = draw.uniform((1,)) * values["target_probs"][:, :-1]
        values["draft_probs"] = (mixed + _shares(draw, values["draft_probs"])) / (1 + mixed.sum(-1, keepdim=True))
        return
    best = values["target_probs"].argmax(-1)[:, :-1].int()
    values["draft_tokens"] = torch.where(draw.uniform(best.shape) < 0.4, best, values["draft_tokens"])
    for name in ("first_child", "next_sibling"):
        values[name] = draw.integers(-1, d.num_drafts + 2, values[name].shape).int()


def _shares(draw: Draw, like: Tensor) -> Tensor:
    import torch

    logits = draw.normal(like.shape) * 3
    shares = torch.where(draw.uniform(like.shape) < 0.2, -torch.inf, logits).double().softmax(-1)
    return shares.float().nan_to_num(0.0)  # rounded from f64, so that every CPU draws the same inputs


@dataclass(frozen=True)
class Verdict:
    """The required result of one request: the accepted drafts with their nodes, and the weights and the position of the final
    draw."""

    tokens: list[int]
    nodes: list[int]
    weights: Any


def _judged(descriptor: VerifyDraftsDescriptor, row: dict[str, Any], promised: dict[str, float]) -> float:
    verdict = {"chain": _chain, "tree": _tree}.get(descriptor.kind, _equal)(descriptor, row)
    count, got = len(verdict.tokens), row["tokens"].tolist()
    emitted = int(row["emitted"])
    if int(row["accepted"]) != count or got[:count] != verdict.tokens or any(token != -1 for token in got[emitted:]):
        return math.inf
    if "nodes" in row and row["nodes"].tolist() != verdict.nodes + [-1] * (len(got) - count):
        return math.inf
    if not descriptor.races:
        last = int(row["target_tokens"][count])
        return 0.0 if got[count:emitted] == [last] * (last >= 0) else math.inf
    if not np.any(verdict.weights > 0):
        return 0.0 if emitted == count else math.inf
    return _raced(descriptor, row, verdict, promised) if emitted == count + 1 else math.inf


def _raced(descriptor: VerifyDraftsDescriptor, row: dict[str, Any], verdict: Verdict, promised: dict[str, float]) -> float:
    token, weights = int(row["tokens"][len(verdict.tokens)]), verdict.weights.astype(np.float64)
    if not 0 <= token < weights.size or not weights[token] > 0:
        return math.inf
    ids = np.flatnonzero(weights > 0)
    at = int(row["offset"]) + len(verdict.tokens)
    b = np.log2(weights[ids])
    keys = b + minus_log2_exponential(words(int(row["seed"]), at, descriptor.stream, descriptor.vocab)[ids])
    own, best = int(np.searchsorted(ids, token)), int(np.argmax(keys))
    bound = 2 * promised["key"] + 4 * promised["roundoff"] * (abs(b[own]) + abs(b[best]))
    return float((keys[best] - keys[own]) / bound)


def _equal(descriptor: VerifyDraftsDescriptor, row: dict[str, Any]) -> Verdict:
    same = (row["draft_tokens"] == row["target_tokens"][:-1]) & (row["draft_tokens"] >= 0)
    count = int(np.argmin(np.append(same, False)))
    return Verdict(row["draft_tokens"][:count].tolist(), [], None)


def _coin(descriptor: VerifyDraftsDescriptor, row: dict[str, Any], depth: int) -> Any:
    word = words(int(row["seed"]), int(row["offset"]) + depth, descriptor.stream + 2**31, 1)[0]
    return F32(int(word) >> 8) * F32(2.0**-24)


def _chain(descriptor: VerifyDraftsDescriptor, row: dict[str, Any]) -> Verdict:
    tokens = row["draft_tokens"].tolist()
    for i, token in enumerate(tokens):
        p, q = row["target_probs"][i], row["draft_probs"][i]
        if not 0 <= token < p.size or not _coin(descriptor, row, i) * q[token] < p[token]:
            rest = np.maximum(p - q, F32(0))
            return Verdict(tokens[:i], [], rest if np.any(rest > 0) else p)
    return Verdict(tokens, [], row["target_probs"][-1])


def _tree(descriptor: VerifyDraftsDescriptor, row: dict[str, Any]) -> Verdict:
    verdict = Verdict([], [], row["target_probs"][0])
    node, steps = 0, descriptor.num_drafts
    while True:
        p = row["target_probs"][node]
        rejected: list[int] = []
        coin, mass, child = _coin(descriptor, row, len(verdict.tokens)), F32(0), _link(row["first_child"][node], descriptor)
        while child and steps:
            steps -= 1
            token = int(row["draft_tokens"][child - 1])
            own = p[token] if 0 <= token < p.size and token not in rejected else F32(0)
            mass = mass + own
            if own > 0 and (coin < mass / F32(descriptor.threshold_acc) or own >= F32(descriptor.threshold_single)):
                break
            rejected.append(token)
            child = _link(row["next_sibling"][child], descriptor)
        else:
            weights = p.copy()
            weights[[token for token in rejected if 0 <= token < p.size]] = 0
            return Verdict(verdict.tokens, verdict.nodes, weights if np.any(weights > 0) else p)
        verdict.tokens.append(token)
        verdict.nodes.append(child)
        node = child


def _link(node: Any, descriptor: VerifyDraftsDescriptor) -> int:
    return int(node) if 1 <= node <= descriptor.num_drafts else 0
