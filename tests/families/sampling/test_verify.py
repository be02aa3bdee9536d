"""Verification of drafts: acceptance by hand, marginals of chain and tree, and coupled drafts compared with drawing without
drafts.
"""

import math

import pytest
import torch

from opfacade import Plan, Target
from opfacade.errors import DescriptorError
from opfacade.plans.sampling import VerifyDraftsArgs, VerifyDraftsDescriptor
from opfacade.testing import determinism, numerics, problems
from opfacade.testing.bits import same_bits
from opfacade.testing.families.sampling.race import words
from opfacade.testing.subject import Subject
from tests import emulator
from tests.families.sampling.calls import drawn, outputs, split_as
from tests.families.sampling.test_statistics import counted, deviation
from tests.support.assert_guarantee import hold

PLACES = [pytest.param("host", marks=emulator.needed), pytest.param("gpu", marks=pytest.mark.gpu)]
BACKENDS = [None, pytest.param(emulator.subject, marks=emulator.needed)]
KINDS = ("chain", "tree", "greedy", "coupled")


def of(place, kind, **fields):
    descriptor = VerifyDraftsDescriptor(kind=kind, **({"batch_size": 4, "num_drafts": 3, "vocab": 1003} | fields))
    return emulator.subject(descriptor) if place == "host" else Subject(descriptor, "cuda", "cuda")


def verified(kind, drafts, subject=None, **given):
    """The args of a run. given: operands, or fields of the descriptor."""
    drafts = torch.as_tensor(drafts, dtype=torch.int32)
    tensors = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
    fields = {n: v for n, v in given.items() if n not in tensors}
    vocab = given["target_probs"].shape[-1] if kind in ("chain", "tree") else 99
    batch, count = drafts.shape
    descriptor = VerifyDraftsDescriptor(kind=kind, batch_size=batch, num_drafts=count, vocab=vocab, **fields)
    if descriptor.races:
        tensors = {"seed": torch.arange(batch), "offset": torch.zeros(batch, dtype=torch.int64)} | tensors
    args = VerifyDraftsArgs(draft_tokens=drafts, **tensors, **outputs(descriptor))
    plan = subject(descriptor) if subject else Plan.select(descriptor, target=Target.cpu())
    plan.run(args)
    assert numerics.check(descriptor, args, plan.plan.sku if subject else plan.sku).worst <= 1
    return args


def one_hot(*tokens, vocab=6):
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab).float()[None]


@pytest.mark.parametrize("subject", BACKENDS)
@pytest.mark.parametrize("kind", ["greedy", "coupled"])
def test_drafts_are_accepted_while_they_equal_the_target(kind, subject):
    target = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8], [-1, -1, 1, 2]], dtype=torch.int32)
    args = verified(kind, [[5, 6, 7], [5, 9, 7], [4, 6, 7], [-1, 3, 1]], subject, target_tokens=target)
    assert args.tokens.tolist() == [[5, 6, 7, 8], [5, 6, -1, -1], [5, -1, -1, -1], [-1] * 4]
    assert (args.accepted.tolist(), args.emitted.tolist()) == ([3, 1, 0, 0], [4, 2, 1, 0])


def test_a_token_of_a_distribution_without_mass_is_judged_wrong():
    descriptor = VerifyDraftsDescriptor(kind="chain", batch_size=1, num_drafts=2, vocab=6)
    given = {"target_probs": torch.zeros(1, 3, 6), "draft_probs": torch.full((1, 2, 6), 1 / 6)}
    args = verified("chain", [[1, 2]], **given)
    assert (args.accepted.tolist(), args.emitted.tolist(), args.tokens.tolist()) == ([0], [0], [[-1] * 3])
    args.emitted.fill_(1), args.tokens[:, 0].fill_(4)
    assert numerics.check(descriptor, args, Plan.select(descriptor, target=Target.cpu()).sku).worst == math.inf


@pytest.mark.parametrize("subject", BACKENDS)
def test_equality_looks_at_no_vocabulary(subject):
    """Target tokens are used as drafts: only a negative draft is rejected for itself, as documented for the args."""
    args = verified("greedy", [[99, 7], [-1, 7]], subject, target_tokens=torch.tensor([[99, 7, 1], [-1, 7, 1]]).int())
    assert args.tokens.tolist() == [[99, 7, 1], [-1, -1, -1]]
    assert "with target_tokens, a negative one" in VerifyDraftsArgs.docs["draft_tokens"]


@pytest.mark.parametrize("subject", BACKENDS)
def test_a_chain_accepts_what_the_target_makes_certain_and_never_what_it_excludes(subject):
    p, q = one_hot(1, 2, 3), torch.full((1, 2, 6), 1 / 6)
    assert verified("chain", [[1, 2]], subject, target_probs=p, draft_probs=q).tokens.tolist() == [[1, 2, 3]]
    assert verified("chain", [[1, 4]], subject, target_probs=p, draft_probs=q).tokens.tolist() == [[1, 2, -1]]
    assert verified("chain", [[6, 2]], subject, target_probs=p, draft_probs=q).tokens.tolist() == [[1, -1, -1]]
    none = torch.zeros(1, 2, 6)  # p = 0 is never below u q, not even where q is 0 too
    assert verified("chain", [[4, 2]], subject, target_probs=p, draft_probs=none).accepted.tolist() == [0]
    args = verified("chain", [[1, 2]], subject, target_probs=torch.zeros(1, 3, 6), draft_probs=q)
    assert (args.tokens.tolist(), args.emitted.tolist()) == ([[-1] * 3], [0])


@pytest.mark.parametrize("subject", BACKENDS)
def test_a_rejected_draft_is_replaced_from_what_the_target_has_more_of(subject):
    p = torch.tensor([[0.1, 0.5, 0.4, 0.0]]).expand(200, 2, 4).contiguous()
    q = torch.tensor([[0.9, 0.1, 0.0, 0.0]]).expand(200, 1, 4).contiguous()
    args = verified("chain", [[0]] * 200, subject, target_probs=p, draft_probs=q)
    assert 10 < args.accepted.sum() < 40
    assert set(args.tokens[args.accepted == 0, 0].tolist()) == {1, 2}


@pytest.mark.parametrize("subject", BACKENDS)
def test_a_coin_depends_on_seed_and_position_alone(subject):
    """A draft as a separate request, over a vocabulary of one token, has the same random number as in its chain."""
    torch.manual_seed(3)
    batch, n, vocab = 24, 3, 19
    p, q = torch.rand(batch, n + 1, vocab).softmax(-1), torch.full((batch, n, vocab), 0.09)
    drafts = torch.randint(vocab, (batch, n))
    own = p[:, :n].gather(2, drafts[..., None])
    args = verified("chain", drafts, subject, target_probs=p, draft_probs=q)
    pair, offset = own.view(-1, 1, 1).repeat(1, 2, 1), torch.arange(n).repeat(batch)
    given = {"draft_probs": torch.full((batch * n, 1, 1), 0.09), "seed": torch.arange(batch).repeat_interleave(n)}
    alone = verified("chain", torch.zeros(batch * n, 1), subject, target_probs=pair, offset=offset, **given)
    stays = alone.accepted.view(batch, n)
    assert torch.equal(args.accepted, stays.cumprod(1).sum(1, dtype=torch.int32))
    assert len(set(args.accepted.tolist())) > 2


@pytest.mark.parametrize("subject", BACKENDS)
def test_a_tree_takes_a_path_of_certain_nodes(subject):
    """Root with drafts 0 and 1 as children; draft 1 has 2 and 3."""
    links = {"first_child": [[1, -1, 3, -1, -1]], "next_sibling": [[-1, 2, -1, 4, -1]]}
    links = {name: torch.tensor(value, dtype=torch.int32) for name, value in links.items()}
    p = one_hot(2, 0, 5, 0, 1)
    args = verified("tree", [[1, 2, 4, 5]], subject, target_probs=p, **links)
    assert args.tokens.tolist() == [[2, 5, 1, -1, -1]]
    assert args.nodes.tolist() == [[2, 4, -1, -1, -1]]
    leaf = verified("tree", [[1, 3, 4, 5]], subject, target_probs=p, **links)
    assert (leaf.tokens.tolist(), leaf.accepted.tolist()) == ([[2, -1, -1, -1, -1]], [0])
    likely = torch.full((1, 5, 6), 1 / 6)
    assert verified("tree", [[1, 3, 4, 5]], subject, target_probs=likely, threshold_single=0.1, **links).nodes[0, 0] == 1
    circle = {"first_child": torch.full((1, 5), 3, dtype=torch.int32), "next_sibling": torch.full((1, 5), 3, dtype=torch.int32)}
    assert verified("tree", [[1, 3, 4, 5]], subject, target_probs=likely, threshold_single=0.1, **circle).accepted <= 4


@pytest.mark.parametrize("subject", BACKENDS)
def test_a_token_drafted_twice_among_siblings_is_rejected_twice(subject):
    """Its mass of 0.25, counted twice, would be above half of the random numbers."""
    batch = 64
    links = {"first_child": [1, -1, -1], "next_sibling": [-1, 2, -1]}
    links = {name: torch.tensor([value] * batch, dtype=torch.int32) for name, value in links.items()}
    p = torch.full((batch, 3, 4), 0.25)
    args = verified("tree", [[1, 1]] * batch, subject, target_probs=p, **links)
    assert 6 < args.accepted.sum() < 26
    assert set(args.nodes[:, 0].tolist()) == {1, -1}
    assert 1 not in args.tokens[args.accepted == 0, 0].tolist()


def marginal(kind, p, n, **given):
    seeds = torch.arange(n) * 13
    args = verified(kind, target_probs=p.expand(n, 2 if kind == "chain" else 3, 8).contiguous(), seed=seeds, **given)
    return deviation(counted(args.tokens[:, 0].long(), 8), p)


def test_the_first_token_has_the_marginal_of_the_target():
    n, generator = 3000, torch.Generator().manual_seed(2)
    p, q = (torch.randn(8, generator=generator).softmax(-1) for _ in range(2))
    drafts = drawn(q.log().expand(n, 8), seed=torch.arange(n) * 13, stream=1).token[:, None]
    assert abs(marginal("chain", p, n, drafts=drafts, draft_probs=q.expand(n, 1, 8).contiguous())) < 4
    children = torch.tensor([1, -1, -1], dtype=torch.int32).expand(n, 3).contiguous()
    siblings = torch.tensor([-1, 2, -1], dtype=torch.int32).expand(n, 3).contiguous()
    pair = torch.tensor([[3, 5]]).expand(n, 2)
    assert abs(marginal("tree", p, n, drafts=pair, first_child=children, next_sibling=siblings)) < 4


def test_coupled_drafts_give_the_tokens_of_decoding_without_drafts():
    """For any drafts, the emitted tokens are a prefix of those drawn one by one."""
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(1)) * 2
    target = torch.stack([drawn(logits, seed=list(range(6)), offset=100 + i, top_p=0.9).token for i in range(4)], 1)
    drafts = torch.where(torch.rand(6, 3, generator=torch.Generator().manual_seed(2)) < 0.7, target[:, :3], 7)
    args = verified("coupled", drafts, target_tokens=target)
    for row in range(6):
        count = int(args.emitted[row])
        assert args.tokens[row, :count].tolist() == target[row, :count].tolist()
        assert count == 1 + int((drafts[row] == target[row, :3]).int().cumprod(0).sum())


def test_coins_and_races_have_words_of_their_own():
    assert len({int(words(3, 5, stream, 1)[0]) for stream in (0, 1, 2**31, 2**31 + 1)}) == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "chain", "draft_stream": 0}, "a stream other than the target's 0"),
        ({"kind": "chain", "threshold_acc": 0.5}, r"threshold_acc expected 1 unless kind is tree, got 0\.5"),
        ({"kind": "greedy", "threshold_single": 0.25}, r"threshold_single expected 1 unless kind is tree, got 0\.25"),
        ({"kind": "tree", "threshold_acc": 0.0}, "threshold_acc"),
        ({"kind": "tree", "num_drafts": 129}, "num_drafts"),
        ({"kind": "any"}, "kind"),
    ],
)
def test_fields_that_contradict_are_refused(fields, message):
    with pytest.raises(DescriptorError, match=message):
        VerifyDraftsDescriptor(**({"batch_size": 1, "num_drafts": 2, "vocab": 4} | fields))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(8))
def test_random_problems(place, seed):
    descriptor = problems.random_descriptor("verify_drafts", seed)
    hold(emulator.subject(descriptor) if place == "host" else Subject(descriptor, "cuda", "cuda"), seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_row_has_its_bits_in_any_batch(place, kind):
    shown = determinism.batch_invariance(of(place, kind), determinism.Campaign(3, 2, 5, 1), seed=1)
    assert shown.different == 0 < shown.compared


@emulator.needed
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_no_number_of_ctas_changes_a_bit(kind):
    args = of("host", kind).args(5)
    of("host", kind).run(args)
    want = args.tokens.clone()
    for ctas in (2, 4):
        args.tokens.fill_(77)
        with split_as(ctas, 0):
            of("host", kind).run(args)
        assert same_bits(args.tokens, want)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_runs_repeat_bitwise(kind):
    assert determinism.run_to_run(of("gpu", kind, vocab=151936), 40, seed=1).different == 0
