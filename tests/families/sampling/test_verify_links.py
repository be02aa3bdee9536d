"""Level full refuses links of drafts that are not a tree, and names the first wrong link."""

import pytest
import torch

from opfacade import Plan, Target
from opfacade.errors import ArgumentError
from opfacade.plan import forget_selections
from opfacade.plans.sampling import VerifyDraftsArgs, VerifyDraftsDescriptor
from tests.families.sampling.calls import outputs

N = 4
TREE = ([1, -1, 3, -1, -1], [-1, 2, -1, 4, -1])  # drafts 1 and 2 follow the last token, 3 and 4 follow draft 2
WRONG = {
    "a child of two nodes": ([1, 3, 3, -1, -1], [-1, 2, -1, 4, -1], "first_child[1, 2]", "3"),
    "a child that is a sibling elsewhere": ([1, 3, -1, -1, -1], [-1, 2, 3, -1, -1], "next_sibling[1, 2]", "3"),
    "a sibling of itself": ([1, -1, -1, -1, -1], [-1, 1, -1, -1, -1], "next_sibling[1, 1]", "1"),
    "a circle of children": ([1, 2, 1, -1, -1], [-1] * 5, "first_child[1, 2]", "1"),
    "a circle of siblings": ([1, -1, -1, -1, -1], [-1, 2, 3, 2, -1], "next_sibling[1, 3]", "2"),
    "a link to the root": ([1, -1, -1, -1, -1], [-1, 0, -1, -1, -1], "next_sibling[1, 1]", "0"),
    "a draft that is not there": ([1, -1, -1, -1, -1], [-1, 5, -1, -1, -1], "next_sibling[1, 1]", "5"),
    "a link below none": ([-2, -1, -1, -1, -1], [-1] * 5, "first_child[1, 0]", "-2"),
}
SOUND = {
    "nothing drafted": ([-1] * 5, [-1] * 5),
    "drafts that no link leads to": ([1, -1, 9, 1, 3], [-1, -1, 1, 3, 3]),
    "a sibling of the root, which nothing reads": ([1, -1, -1, -1, -1], [1, -1, -1, -1, -1]),
}


def run(first, sibling, **fields):
    """Two requests: a tree, and the given links."""
    descriptor = VerifyDraftsDescriptor(kind="tree", batch_size=2, num_drafts=N, vocab=6, **fields)
    links = {"first_child": (TREE[0], first), "next_sibling": (TREE[1], sibling)}
    given = {name: torch.tensor(rows, dtype=torch.int32) for name, rows in links.items()}
    given |= {"num_valid": torch.tensor([1], dtype=torch.int32)} if fields else {}
    word = torch.zeros(2, dtype=torch.int64)
    drafts, p = torch.ones(2, N, dtype=torch.int32), torch.full((2, N + 1, 6), 1 / 6)
    made = outputs(descriptor)
    args = VerifyDraftsArgs(draft_tokens=drafts, target_probs=p, seed=word, offset=word, **given, **made)
    args.tokens.fill_(77)
    Plan.select(descriptor, target=Target.cpu()).run(args)
    return args


@pytest.fixture
def validate(monkeypatch):
    """Sets the level of plans that are created from now on."""

    def at(level):
        monkeypatch.setenv("OPFACADE_VALIDATE", level)
        forget_selections()

    yield at
    forget_selections()


@pytest.fixture
def full(validate):
    validate("full")


@pytest.mark.parametrize("links", WRONG)
def test_links_that_are_no_tree_are_refused_at_full(links, full):
    first, sibling, argument, value = WRONG[links]
    with pytest.raises(ArgumentError) as caught:
        run(first, sibling)
    issue = caught.value.issues[0]
    assert (caught.value.code, issue.argument) == ("OPF-V003", argument)
    assert issue.expected == "-1, or a draft in [1, 4] that no other link leads to"
    assert issue.got == value


@pytest.mark.parametrize("links", SOUND)
def test_links_that_nothing_follows_hold_anything(links, full):
    assert run(*SOUND[links]).tokens[1, 0] >= 0


def test_links_of_a_request_that_is_not_valid_hold_anything(full):
    assert run([9] * 5, [9] * 5, num_valid=True).tokens[1].tolist() == [77] * 5


@pytest.mark.parametrize("level", ["off", "metadata", "indices"])
def test_other_levels_take_any_links(level, validate):
    validate(level)
    assert run([1, 2, 1, -1, -1], [-1] * 5).accepted[1] <= N
