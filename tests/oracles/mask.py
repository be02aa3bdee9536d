"""pack_mask, from docs/ops/mask.md: every byte is exact."""

import itertools

import torch


def expected(problem, args):
    b, each = problem.batch_size, problem.num_bits // max(problem.batch_size, 1)
    begin = [each * i for i in range(b + 1)] if problem.segments == "even" else args.bits_indptr.tolist()
    packed, starts = torch.zeros_like(args.packed), [0]
    weights = torch.tensor([1 << (i if problem.bit_order == "little" else 7 - i) for i in range(8)])
    for first, stop in itertools.pairwise(begin):
        bits = (args.mask[first:stop] != 0).long()
        bits = torch.cat([bits, bits.new_zeros(-len(bits) % 8)]).reshape(-1, 8)
        packed[starts[-1] : starts[-1] + len(bits)] = (bits * weights).sum(1).to(torch.uint8)
        starts.append(starts[-1] + len(bits))
    return {"packed": packed, "packed_indptr": torch.tensor(starts, dtype=torch.int32)}
