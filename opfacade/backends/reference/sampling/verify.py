"""Verification in torch, request by request: comparisons in f32, as specified; random keys in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.backends.reference.sampling.philox import minus_log2_exponential, words
from opfacade.plans._sampling.verify import COINS
from opfacade.plans.sampling import VerifyDraftsDescriptor

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._sampling.call import SamplingCall


def verify(descriptor: VerifyDraftsDescriptor, args: SamplingCall) -> None:
    count = descriptor.batch_size
    if descriptor.num_valid:
        counted = int(args.num_valid[0])
        count = counted if 0 <= counted <= count else 0
    rule = {"chain": _chain, "tree": _tree}.get(descriptor.kind, _equal)
    for request in range(count):
        accepted, last, nodes = rule(descriptor, args, request)
        tokens = [*accepted, *([last] if last >= 0 else [])]
        args.tokens[request] = -1
        args.tokens[request, : len(tokens)] = args.tokens.new_tensor(tokens)
        args.accepted[request], args.emitted[request] = len(accepted), len(tokens)
        if descriptor.kind == "tree":
            args.nodes[request] = -1
            args.nodes[request, : len(nodes)] = args.nodes.new_tensor(nodes)


Found = tuple[list[int], int, list[int]]  # accepted drafts, the token that follows, accepted nodes


def _equal(descriptor: VerifyDraftsDescriptor, args: SamplingCall, request: int) -> Found:
    drafts, target = args.draft_tokens[request].tolist(), args.target_tokens[request].tolist()
    count = next((i for i, (a, b) in enumerate(zip(drafts, target, strict=False)) if a != b or a < 0), len(drafts))
    return drafts[:count], target[count], []


def _coin(descriptor: VerifyDraftsDescriptor, args: SamplingCall, request: int, depth: int) -> Tensor:
    """A multiple of 2^-24 in [0, 1)."""
    at = slice(request, request + 1)
    return (words(args.seed[at], args.offset[at] + depth, descriptor.stream + COINS, 1)[0, 0] >> 8).float() * 2.0**-24


def _race(descriptor: VerifyDraftsDescriptor, args: SamplingCall, request: int, depth: int, weights: Tensor) -> int:
    at = slice(request, request + 1)
    noise = minus_log2_exponential(words(args.seed[at], args.offset[at] + depth, descriptor.stream, descriptor.vocab)[0])
    found = (weights.double().log2() + noise).masked_fill(~(weights > 0), float("-inf"))
    return int(found.argmax()) if bool((weights > 0).any()) else -1


def _chain(descriptor: VerifyDraftsDescriptor, args: SamplingCall, request: int) -> Found:
    drafts, p = args.draft_tokens[request].tolist(), args.target_probs[request]
    for i, token in enumerate(drafts):
        q, inside = args.draft_probs[request, i], 0 <= token < descriptor.vocab
        if not inside or not bool(_coin(descriptor, args, request, i) * q[token] < p[i, token]):
            rest = (p[i] - q).clamp(min=0)
            weights = rest if bool((rest > 0).any()) else p[i]
            return drafts[:i], _race(descriptor, args, request, i, weights), []
    return drafts, _race(descriptor, args, request, len(drafts), p[-1]), []


def _tree(descriptor: VerifyDraftsDescriptor, args: SamplingCall, request: int) -> Found:
    p, rejected = args.target_probs[request], set[int]()
    accepted: list[int] = []
    nodes: list[int] = []
    node, steps = 0, 0
    child = _step(descriptor, args.first_child[request, 0])
    mass = p.new_zeros(())
    single, total = (p.new_tensor(x) for x in (descriptor.threshold_single, descriptor.threshold_acc))
    coin = _coin(descriptor, args, request, 0)
    while child > 0 and steps < descriptor.num_drafts:
        steps += 1
        token = int(args.draft_tokens[request, child - 1])
        left = 0 <= token < descriptor.vocab and token not in rejected
        own = p[node, token] if left else p.new_zeros(())
        mass = mass + own
        if bool(own > 0) and bool((coin < mass / total) | (own >= single)):
            accepted.append(token)
            nodes.append(child)
            node, rejected, mass = child, set(), p.new_zeros(())
            coin = _coin(descriptor, args, request, len(accepted))
            child = _step(descriptor, args.first_child[request, child])
        else:
            rejected.add(token)
            child = _step(descriptor, args.next_sibling[request, child])
    weights = p[node].clone()
    for token in rejected:
        if 0 <= token < descriptor.vocab:
            weights[token] = 0
    weights = weights if bool((weights > 0).any()) else p[node]
    return accepted, _race(descriptor, args, request, len(accepted), weights), nodes


def _step(descriptor: VerifyDraftsDescriptor, node: Tensor) -> int:
    """The node if it exists, otherwise -1."""
    found = int(node)
    return found if 1 <= found <= descriptor.num_drafts else -1
