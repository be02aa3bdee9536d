"""Acceptance and races of drafts, number by number, against a verification by hand, and distributions against the target's."""

import random
from fractions import Fraction

import pytest
import torch

from opfacade import Plan, Target
from opfacade.plans.sampling import VerifyDraftsArgs, VerifyDraftsDescriptor
from tests import emulator
from tests.families.sampling.calls import outputs
from tests.families.sampling.slow_verify import Place, Tree, slow_chain, slow_tree
from tests.families.sampling.test_statistics import counted, deviation

BACKENDS = [None, pytest.param(emulator.subject, marks=emulator.needed)]
SURE = Fraction(1, 2**20)  # f32 decides like fractions if a random number is so far from its threshold
VOCAB, REQUESTS = 7, 160


def ran(kind, subject, drafts, target_probs, places, tree=None, **given):
    """The args of a run without the harness, whose oracle is not used here."""
    batch, n = drafts.shape
    fields = {"threshold_single": tree.single, "threshold_acc": tree.total} if tree else {}
    descriptor = VerifyDraftsDescriptor(
        kind=kind,
        batch_size=batch,
        num_drafts=n,
        vocab=target_probs.shape[-1],
        stream=places[0].stream,
        draft_stream=9,
        **fields,
    )
    given |= links(tree, batch, n) if tree else {}
    at = {name: torch.tensor([getattr(place, name) for place in places]) for name in ("seed", "offset")}
    args = VerifyDraftsArgs(draft_tokens=drafts.int(), target_probs=target_probs, **at, **given, **outputs(descriptor))
    (subject(descriptor) if subject else Plan.select(descriptor, target=Target.cpu())).run(args)
    return args


def links(tree, batch, n):
    first, sibling = [-1] * (n + 1), [-1] * (n + 1)
    for node, children in tree.children.items():
        for here, child in zip([None, *children], children, strict=False):
            if here is None:
                first[node] = child
            else:
                sibling[here] = child
    made = {"first_child": first, "next_sibling": sibling}
    return {name: torch.tensor([value] * batch, dtype=torch.int32) for name, value in made.items()}


def places(stream=0):
    return [Place(seed=2**33 * i + 17 * i + 1, offset=2**32 - 2 + i, stream=stream) for i in range(REQUESTS)]


def shares(rng, rows):
    """Some tokens without mass, some with much of it."""
    logits = torch.tensor([[rng.gauss(0, 1.2) for _ in range(VOCAB)] for _ in range(rows)])
    logits[torch.tensor([[rng.random() < 0.15 for _ in range(VOCAB)] for _ in range(rows)])] = -torch.inf
    logits[:, 0] = logits[:, 0].nan_to_num(neginf=0.0)
    return logits.softmax(-1)


def held(args, outcomes, least):
    """Every request whose random numbers are not near a threshold has the tokens computed by hand; all lengths occur."""
    sure = [i for i, out in enumerate(outcomes) if out.near > SURE]
    assert len(sure) > 0.95 * len(outcomes)
    n = args.tokens.shape[1]
    for i in sure:
        out = outcomes[i]
        assert args.tokens[i].tolist() == out.tokens + [-1] * (n - len(out.tokens)), i
        assert (int(args.accepted[i]), int(args.emitted[i])) == (out.accepted, out.accepted + 1)
        if args.nodes is not None:
            assert args.nodes[i].tolist() == out.nodes + [-1] * (n - len(out.nodes))
    assert {outcomes[i].accepted for i in sure} >= set(range(least + 1))


# Three depths, and a branch that is not below the first child of the root.
BUSHY = {0: (1, 2, 3), 2: (4, 5), 3: (6, 7), 7: (8, 9), 1: (10,), 9: (11,)}
DRAFTS = [0, 3, 1, 5, 2, 3, 1, 0, 4, 6, 2]
TREES = {
    "distinct": Tree(DRAFTS, BUSHY),
    "likely": Tree(DRAFTS, BUSHY, single=0.3),
    "lenient": Tree(DRAFTS, BUSHY, total=0.6),
    "both": Tree(DRAFTS, BUSHY, single=0.4, total=0.8),
    "twice": Tree([3, 3, 1, 5, 5, 2, 2, 4, 2, 6, 2], BUSHY | {7: (8, 9, 10), 1: ()}),
    "thrice": Tree([2, 2, 2, 0, 0, 1, 0], {0: (1, 2, 3), 1: (4, 5), 3: (6, 7)}, total=0.5),
    "around": Tree([4, 1, 4, 1, 4], {0: (1, 2, 3, 4, 5)}),
}


@pytest.mark.parametrize("subject", BACKENDS)
@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_walked_as_by_hand(name, subject):
    tree, rng = TREES[name], random.Random(name)
    n = len(tree.drafts)
    p = torch.stack([shares(rng, n + 1) for _ in range(REQUESTS)])
    drafts, at = torch.tensor([tree.drafts] * REQUESTS), places(5)
    outcomes = [slow_tree(tree, rows.tolist(), place) for rows, place in zip(p, at, strict=True)]
    held(ran("tree", subject, drafts, p, at, tree), outcomes, {"around": 1}.get(name, 2))


@pytest.mark.parametrize("subject", BACKENDS)
def test_the_mass_of_rejected_siblings_stays_at_its_depth(subject):
    """0.5 of the mass is rejected at the root: carried over, it would accept a child of 0.3 with a random number below 0.8."""
    tree = Tree([1, 2, 3], {0: (1, 2), 2: (3,)})
    p = torch.tensor([[0.0, 0.5, 0.5, 0.0], [0.25] * 4, [0.7, 0.0, 0.0, 0.3], [0.25] * 4]).expand(REQUESTS, 4, 4).contiguous()
    at = places()
    args = ran("tree", subject, torch.tensor([tree.drafts] * REQUESTS), p, at, tree)
    second = [i for i, place in enumerate(at) if Fraction(1, 2) <= place.coin(0)]
    assert all(args.nodes[i, 0] == 2 for i in second)
    wrong = [i for i in second if Fraction(3, 10) + SURE < at[i].coin(1) < Fraction(8, 10)]
    right = [i for i in second if at[i].coin(1) < Fraction(3, 10) - SURE]
    assert len(wrong) > 20
    assert len(right) > 10
    assert all(args.tokens[i].tolist() == [2, 0, -1, -1] for i in wrong)
    assert all(args.tokens[i, :2].tolist() == [2, 3] for i in right)


@pytest.mark.parametrize("subject", BACKENDS)
def test_a_chain_is_accepted_as_by_hand(subject):
    rng, n = random.Random(5), 4
    p = torch.stack([shares(rng, n + 1) for _ in range(REQUESTS)])
    q = torch.stack([(shares(rng, n) + 3 * own[:-1]) / 4 for own in p])
    drafts = torch.tensor([[rng.choices(range(VOCAB), row.tolist())[0] for row in own] for own in q])
    at = places(3)
    outcomes = [slow_chain(d.tolist(), a.tolist(), b.tolist(), x) for d, a, b, x in zip(drafts, p, q, at, strict=True)]
    held(ran("chain", subject, drafts, p, at, draft_probs=q), outcomes, n)


def chi(tokens, shares):
    return deviation(counted(tokens.long(), len(shares)), torch.tensor(shares, dtype=torch.float64))


# The target's distribution of two consecutive tokens, the second given each first token.
FIRST = [0.40, 0.25, 0.20, 0.10, 0.05, 0.0, 0.0, 0.0]
AFTER = [0.05, 0.10, 0.15, 0.30, 0.20, 0.10, 0.06, 0.04]
SIBLINGS = {
    "once": ([1, 2, 3, 4, 5], {0: (1, 2, 3), 2: (4, 5)}),
    "twice": ([1, 1, 2, 4, 5], {0: (1, 2, 3), 1: (4, 5)}),
    "apart": ([1, 2, 1, 3, 3], {0: (1, 2, 3), 2: (4, 5)}),
    "the likeliest": ([0, 0, 0, 3, 4], {0: (1, 2, 3), 1: (4, 5)}),
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_tokens_of_a_tree_have_the_distribution_of_the_target(name):
    """Distributions of the first token, and of the second one after a drafted first token."""
    drafts, children = SIBLINGS[name]
    count = 1500
    tree, at = Tree(drafts, children), [Place(seed=13 * i, offset=7 * i) for i in range(count)]
    p = torch.tensor([FIRST, *[AFTER] * 5]).expand(count, 6, 8).contiguous()
    args = ran("tree", None, torch.tensor([drafts] * count), p, at, tree)
    assert abs(chi(args.tokens[:, 0], FIRST)) < 4
    behind = args.tokens[args.accepted > 0, 1]
    assert len(behind) > 300
    assert abs(chi(behind, AFTER)) < 4
