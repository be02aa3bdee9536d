"""Subjects with deliberate faults, which the checks must detect."""

from dataclasses import dataclass, replace

import torch

from opfacade.testing.subject import Subject


@dataclass(frozen=True)
class Faulty(Subject):
    """The reference on the CPU, with one fault by name."""

    fault: str = ""

    def run(self, args, workspace=None):
        if not hasattr(args, "o"):
            return super().run(args, workspace)
        return getattr(self, self.fault)(args)

    def right(self, args):
        Subject.run(self, args)

    def drops_a_key(self, args):
        self.right(replace(args, kv_lens=(args.kv_lens - 1).clamp(min=0)))

    def reads_past_the_end(self, args):
        size = self.descriptor.paged_kv.page_size
        self.right(replace(args, kv_lens=torch.where(args.kv_lens % size != 0, args.kv_lens + 1, args.kv_lens)))

    def takes_a_wrong_page(self, args):
        table = args.block_table.clone()
        for row, n in zip(table, args.kv_lens.tolist(), strict=True):
            if n > 2 * self.descriptor.paged_kv.page_size:
                row[1] = row[0]
        self.right(replace(args, block_table=table))

    def swaps_heads(self, args):
        self.right(args)
        args.o.copy_(args.o.flip(1))

    def loses_mass(self, args):
        self.right(args)
        args.o.mul_(0.98)

    def forgets_rows(self, args):
        before = args.o[:1].clone()
        self.right(args)
        args.o[:1] = before

    def writes_beside(self, args):
        self.right(args)
        past = torch.as_strided(args.o, (1,), (1,), args.o.storage_offset() + args.o.numel())
        past.zero_()

    def writes_an_input(self, args):
        self.right(args)
        args.q[0, 0, 0] += 1

    def counts_runs(self, args):
        self.right(args)
        RUNS.append(1)
        if len(RUNS) % 7 == 0:
            args.lse[0, 0] += 1e-3

    def sees_the_batch(self, args):
        self.right(args)
        if self.descriptor.batch_size > 3:
            args.lse.view(torch.int32).add_(1)

    def sees_the_neighbour(self, args):
        self.right(args)
        args.lse[1:] += 1e-2 * args.lse[:-1].nan_to_num(0.0, neginf=0.0)

    def sees_addresses(self, args):
        self.right(args)
        args.lse[0] += 1e-3 * float(args.block_table[0, 0])


RUNS: list[int] = []
