"""Speculative decoding with a tree of drafts: the path that the target accepts, and the token that follows it."""

import torch
from common import DEVICE, i32

from opfacade.plans.sampling import VerifyDraftsArgs, VerifyDraftsDescriptor, VerifyDraftsPlan

#      node 0: the last token of the text
#      /              \
#  node 1: 7        node 2: 8
#                   /       \
#             node 3: 5    node 4: 9
drafts, vocab = [7, 8, 5, 9], 12
first_child = [1, -1, 3, -1, -1]  # first child of each node; -1: none
next_sibling = [-1, 2, -1, 4, -1]  # next sibling of each node; -1: none


def verified(likely):
    """The args of a call in which the target gives all probability behind node j to the token likely[j]."""
    desc = VerifyDraftsDescriptor(batch_size=1, num_drafts=4, vocab=vocab, kind="tree")
    args = VerifyDraftsArgs(
        draft_tokens=i32([drafts]),
        target_probs=torch.nn.functional.one_hot(torch.tensor(likely, device=DEVICE), vocab).float()[None],
        first_child=i32([first_child]),
        next_sibling=i32([next_sibling]),
        seed=torch.tensor([3], device=DEVICE),
        offset=torch.tensor([20], device=DEVICE),  # position of the first draft in the text
        tokens=i32([[-2] * 5]),
        nodes=i32([[-2] * 5]),
        accepted=i32([-2]),
        emitted=i32([-2]),
    )
    VerifyDraftsPlan.select(desc).run(args)  # OPFACADE_VALIDATE=full refuses links that do not form a tree
    return args


args = verified([8, 0, 9, 0, 6])  # after the text 8, after node 2 token 9, after node 4 token 6
assert args.tokens.tolist() == [[8, 9, 6, -1, -1]]  # two drafts, then a token of the target's own
assert args.nodes.tolist() == [[2, 4, -1, -1, -1]]  # whose keys and values stay in the cache
assert (args.accepted.item(), args.emitted.item()) == (2, 3)

args = verified([1, 0, 0, 0, 0])  # the target accepts no draft
assert args.tokens.tolist() == [[1, -1, -1, -1, -1]]
