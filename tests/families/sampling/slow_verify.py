"""Verification of drafts by hand: one request in plain Python. Probabilities are fractions, so that no sum is rounded; the
noise comes from `calls.philox`."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

from tests.families.sampling.calls import philox

COINS = 2**31


@dataclass(frozen=True)
class Place:
    """Parameters of a request's draws: key, position of its first draft, word of its races."""

    seed: int
    offset: int
    stream: int = 0

    def words(self, group, depth, stream):
        at = (self.offset + depth) % 2**64
        return philox((group, at % 2**32, at >> 32, stream), (self.seed % 2**32, self.seed >> 32 & 0xFFFFFFFF))

    def coin(self, depth):
        return Fraction(self.words(0, depth, self.stream + COINS)[0] >> 8, 2**24)

    def race(self, depth, weights):
        """The token whose exponential variate divided by its weight is smallest."""
        best, found = math.inf, -1
        for token, weight in enumerate(weights):
            if weight <= 0:
                continue
            word = self.words(token // 4, depth, self.stream)[token % 4]
            time = -math.log1p(-(word + 0.5) / 2**32) / float(weight)
            best, found = min((best, found), (time, token))
        return found


@dataclass
class Outcome:
    tokens: list = field(default_factory=list)
    nodes: list = field(default_factory=list)
    accepted: int = 0
    near: Fraction = Fraction(1)  # the smallest distance between a random number and its threshold


@dataclass(frozen=True)
class Tree:
    """children: node -> its children in order; node 0 is the root, node 1 + i is draft i."""

    drafts: list
    children: dict
    single: float = 1.0
    total: float = 1.0


def exact(rows):
    return [[Fraction(x) for x in row] for row in rows]


def slow_chain(drafts, p, q, place):
    """Leviathan's rule."""
    p, q, out = exact(p), exact(q), Outcome()
    for depth, token in enumerate(drafts):
        need = place.coin(depth) * q[depth][token]
        out.near = min(out.near, abs(need - p[depth][token]))
        if need >= p[depth][token]:
            out.tokens.append(place.race(depth, [max(a - b, 0) for a, b in zip(p[depth], q[depth], strict=True)]))
            return out
        out.tokens.append(token)
        out.accepted += 1
    out.tokens.append(place.race(len(drafts), p[len(drafts)]))
    return out


def slow_tree(tree, p, place):
    """A random number falls among the children of a node as on a line of segments, one for each token."""
    p, out, node = exact(p), Outcome(), 0
    single, total = Fraction(tree.single), Fraction(tree.total)
    while True:
        depth, end, passed, taken = len(out.nodes), Fraction(0), [], None
        for child in tree.children.get(node, ()):
            token = tree.drafts[child - 1]
            if token in passed:
                continue
            end += p[node][token]
            out.near = min(out.near, abs(place.coin(depth) - end / total))
            if p[node][token] > 0 and (place.coin(depth) * total < end or p[node][token] >= single):
                taken = child
                break
            passed.append(token)
        if taken is None:
            out.tokens.append(place.race(depth, [0 if token in passed else w for token, w in enumerate(p[node])]))
            return out
        out.tokens.append(tree.drafts[taken - 1])
        out.nodes.append(taken)
        out.accepted += 1
        node = taken
