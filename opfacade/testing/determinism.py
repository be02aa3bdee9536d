"""Checks that bits do not change: between runs with other memory, streams and load, and for each request in any batch."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.testing.batches import EMPTY, NEIGHBOURS, Batches, log_uniform
from opfacade.testing.batches import Campaign as Campaign
from opfacade.testing.bits import bits, fill
from opfacade.testing.harness import by_validity, harness_of
from opfacade.testing.subject import Subject

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


@dataclass(frozen=True, slots=True)
class Shown:
    """The number of bit comparisons and of runs, and a description of the first failure, if any."""

    compared: int
    runs: int
    different: int
    first: str = ""


_FLUSH = 128 * 2**20  # bytes: more than any L2 cache

# -- run to run ---------------------------------------------------------------------------------------------------------


class _Noise:
    """Kernels that run concurrently and compete with the kernel under test for tensor cores or memory bandwidth; none on the
    CPU."""

    def __init__(self, device: str) -> None:
        import torch

        self.large = [torch.zeros(_FLUSH, dtype=torch.uint8, device=device) for _ in range(2)] if device == "cuda" else []

        self.stream = torch.cuda.Stream() if device == "cuda" else None  # type: ignore[no-untyped-call]
        self.matrix = torch.randn(1536, 1536, device=device) if self.stream else None

    def start(self, rng: random.Random) -> None:
        """Empties the L2 cache, so that copies arrive late, then starts one of the two kernels."""
        import torch

        if self.stream is None or self.matrix is None:
            return
        if rng.random() < 0.5:
            self.large[0].zero_()
        with torch.cuda.stream(self.stream):
            if rng.random() < 0.5:
                torch.mm(self.matrix, self.matrix)
            else:
                self.large[1].copy_(self.large[0])


def run_to_run(subject: Subject, runs: int, seed: int) -> Shown:
    """Repeats the same call with other addresses, other garbage in workspace and outputs, other streams and other load."""
    import torch

    rng, args = random.Random(seed), subject.args(seed)
    written = [name for name, spec in operands_of(subject.descriptor).items() if spec.written]
    before = {name: getattr(args, name).clone() for name in written}
    noise, cuda = _Noise(subject.device), subject.device == "cuda"
    streams = [torch.cuda.Stream() for _ in range(4)] if cuda else []  # type: ignore[no-untyped-call]
    want: dict[str, Tensor] | None = None
    different = torch.zeros((), dtype=torch.int64, device=subject.device)
    for _ in range(runs):
        call = _moved(subject, args, before, rng)
        workspace = subject.workspace(rng.randrange(256), rng.randrange(8))
        noise.start(rng)
        if cuda:
            stream = rng.choice(streams)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                subject.run(call, workspace)
            torch.cuda.current_stream().wait_stream(stream)
        else:
            subject.run(call, workspace)
        got = {name: _owned(subject, call, name) for name in written}
        want = want or {name: value.clone() for name, value in got.items()}
        different += torch.stack([(got[name] != want[name]).any() for name in written]).any()
    count = int(different)
    return Shown(runs, runs, count, f"{count} of {runs} runs differ from the first" if count else "")


def _moved(subject: Subject, args: Args, before: dict[str, Tensor], rng: random.Random) -> Any:
    """The same call with garbage in the outputs, and sometimes with every tensor at another address."""
    values = {name: getattr(args, name) for name in type(args).__slots__ if getattr(args, name) is not None}
    for name, spec in operands_of(subject.descriptor).items():
        if spec.role == "out":
            values[name] = fill(_placed(values[name], rng), rng.choice((0.0, 7.0, math.nan, math.inf)))
        elif spec.role == "inout":
            values[name] = _placed(before[name], rng)
        elif rng.random() < 0.1:
            values[name] = _placed(values[name], rng)
    return type(args)(**values)


def _owned(subject: Subject, call: Args, name: str) -> Tensor:
    """The bits of an output, with 0 for elements that the call does not write."""
    free = harness_of(subject.descriptor).unowned(subject.descriptor, call, name)
    found = bits(getattr(call, name))
    found = found if free is None else found.masked_fill(free, 0)
    return by_validity(subject.descriptor, call, name, found)[0]


def _placed(tensor: Tensor, rng: random.Random) -> Tensor:
    """A copy at a random multiple of 16 bytes in a new allocation. Views get contiguous strides."""
    step = max(1, 16 // tensor.element_size())
    offset = step * rng.randrange(64)
    whole = tensor.new_empty(tensor.numel() + offset)
    raw = bits(whole)
    raw[offset:] = bits(tensor).flatten()
    return whole[offset:].view(tensor.shape)


def fingerprint(subject: Subject, seed: int) -> str:
    """SHA-256 of everything that one call writes; equal in all processes if the guarantee of stable bits holds."""
    args = subject.args(seed)
    subject.run(args, subject.workspace(random.randrange(256), random.randrange(8)))
    digest = hashlib.sha256()
    for name, spec in operands_of(subject.descriptor).items():
        if spec.written:
            digest.update(_owned(subject, args, name).cpu().numpy().tobytes())
    return digest.hexdigest()


# -- request by request ------------------------------------------------------------------------------------------------


QUICK = Campaign(needles=12, compositions=8, largest=24, longest=700, q_longest=20)


def batch_invariance(subject: Subject, campaign: Campaign, seed: int) -> Shown:
    """Runs each needle (a unit whose bits are compared) alone, then in random batches of any size, and counts bit differences.

    `subject` gives the kind of problem; the campaign replaces its batch, rows and pool.
    """
    rng = random.Random(seed)
    batches = harness_of(subject.descriptor).batches(subject, campaign, rng)
    solo = _Solo(subject, batches, campaign.needles)
    counts = [0] * campaign.needles
    flags: list[Tensor] = []
    orders: list[list[int]] = []
    while min(counts) < campaign.compositions:
        order = _composition(rng, counts, campaign)
        if len(orders) % 16 == 15:
            batches = batches.moved(rng)
        flags.append(solo.differs(batches, order, spare=rng.choice((0, 1, 100))))
        orders.append(order)
        for needle in {r for r in order if 0 <= r < campaign.needles}:
            counts[needle] += 1
    import torch

    bad = torch.stack(flags).nonzero().flatten().tolist() if flags else []
    first = f"{len(bad)} of {len(orders)} batches; the first: {orders[bad[0]]}"[:300] if bad else ""
    return Shown(sum(counts), len(orders), len(bad), first)


def _composition(rng: random.Random, counts: Sequence[int], campaign: Campaign) -> list[int]:
    """A batch in random order: first the needles used least, then any units, including EMPTY and repeated ones."""
    size = log_uniform(rng, campaign.largest)
    least = sorted(range(campaign.needles), key=lambda r: (counts[r], rng.random()))[: max(1, size // 2)]
    others = [rng.randrange(EMPTY, campaign.needles + NEIGHBOURS) for _ in range(size - len(least))]
    order = [*least, *others]
    rng.shuffle(order)
    return order


class _Solo:
    """Outputs of each needle alone, as one table of rows per output."""

    def __init__(self, subject: Subject, batches: Batches, needles: int) -> None:
        import torch

        self.subject, self.needles = subject, needles
        outs = []
        for needle in range(needles):
            descriptor, args = batches.batch([needle])
            subject.on(descriptor).run(args)
            outs.append([bits(t) for t in _written(batches, descriptor, args)])
        self.tables = [torch.cat(parts) for parts in zip(*outs, strict=True)]

    def differs(self, batches: Batches, order: Sequence[int], spare: int) -> Tensor:
        """Whether the results of any needle in this batch differ from its results alone: a device tensor, not synchronised."""
        import torch

        descriptor, args = batches.batch(order, spare)
        self.subject.on(descriptor).run(args)
        outs = _written(batches, descriptor, args)
        # The table begins with the rows of the needles, in order.
        needle = [0 <= r < self.needles for r in order]
        rows = batches.rows([r if own else EMPTY for r, own in zip(order, needle, strict=True)])
        kept = [0 <= r < self.needles for r in order if r != EMPTY for _ in batches.rows([r])]
        places = [place for place, own in zip(batches.new_rows(order), kept, strict=True) if own]
        at, where = (torch.tensor(found, dtype=torch.int64, device=outs[0].device) for found in (rows, places))
        pairs = [(bits(got)[where] != table[at]).any() for got, table in zip(outs, self.tables, strict=True)]
        return torch.stack(pairs).any()


def _written(batches: Batches, descriptor: Descriptor[Any], args: Args) -> list[Tensor]:
    """The tensors that a call wrote, with the axis of units first."""
    names = [name for name, spec in operands_of(descriptor).items() if spec.written and getattr(args, name) is not None]
    return [batches.by_row(descriptor, name, args) for name in names]
