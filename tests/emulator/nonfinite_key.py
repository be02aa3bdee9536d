"""Checks for both sm_90a prefills: a non-finite key changes only the rows that attend to it."""

import torch

from opfacade.testing import inputs
from tests import emulator


def check_a_nonfinite_key(descriptor, pool):
    """descriptor: a ragged batch of two requests and four heads, in which heads 2 and 3 share KV head 1, with a
    window of 70."""
    subject = emulator.subject(descriptor)
    args = subject.args(6, inputs.DrawnLengths(q=[90, 0], kv=[90, 0]))
    subject.run(args)
    want = args.o.clone()
    getattr(args, pool)[20, 1, 5] = float("nan")
    subject.run(args)
    touched = torch.zeros(90, 4, dtype=torch.bool)
    touched[20:91, 2:] = True  # rows 20 to 90 attend to key 20
    assert torch.equal(args.o[~touched], want[~touched])
    assert bool(args.o[touched].isnan().any(-1).all())


def check_a_second_masked_tile(descriptor):
    """descriptor: a causal ragged batch with one request, 128 rows per head and 319 keys, so that rows end in more than one
    tile."""
    subject = emulator.subject(descriptor)
    args = subject.args(6, inputs.DrawnLengths(q=[128], kv=[319]))
    subject.run(args)
    want = args.o.clone()
    bits, one = args.v.view(torch.uint8), args.v.element_size()
    bits[250, 1, 5 * one : 6 * one] = 0x7F  # NaN in e4m3 and f16, in the next-to-last tile
    subject.run(args)
    seen = torch.zeros(args.o.shape, dtype=torch.bool)
    seen[250 - 191 :, 1, 5] = True  # row 0 ends at key 191
    assert torch.equal(args.o[~seen], want[~seen])
    assert bool(args.o[seen].isnan().all())
    bits[128:192, 1, : 16 * one], bits[192:256, 1, 16 * one : 32 * one] = 0x7F, 0x7F  # so many values that every lane finds one
    subject.run(args)
    seen[:, 1, :16] = seen[1:, 1, 16:32] = True
    assert torch.equal(args.o[~seen], want[~seen])
    assert bool(args.o[seen].isnan().all())
