"""Speculative decoding: which drafted tokens the target accepts, and the token that follows them."""

from common import DEVICE, i32

from opfacade.plans.sampling import VerifyDraftsArgs, VerifyDraftsDescriptor, VerifyDraftsPlan

desc = VerifyDraftsDescriptor(batch_size=2, num_drafts=3, vocab=50, kind="greedy")
args = VerifyDraftsArgs(
    draft_tokens=i32([[4, 8, 15], [16, 23, 42]]),
    target_tokens=i32([[4, 8, 1, 2], [16, 23, 42, 7]]),  # the target's own choice after each prefix
    tokens=i32([[-2] * 4] * 2),
    accepted=i32([-2] * 2),
    emitted=i32([-2] * 2),
)
VerifyDraftsPlan.select(desc).run(args)
assert args.accepted.tolist() == [2, 3]
assert args.tokens.tolist() == [[4, 8, 1, -1], [16, 23, 42, 7]]
assert args.emitted.device.type == DEVICE
assert args.emitted.tolist() == [3, 4]
