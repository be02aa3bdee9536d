"""Equivalent forms of a call: the bits must be equal if the SKU guarantees it; otherwise the bound must still hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opfacade.testing import numerics
from opfacade.testing.families.attention.requests import EMPTY, Requests, bits, repaged, same_bits
from opfacade.testing.subject import Subject, invariant, outputs

if TYPE_CHECKING:
    pass


def pages_may_lie_anywhere(subject: Subject, seed: int) -> list[str]:
    """Shuffles the physical pages: the lengths, and so the schedule, stay the same, so the bits must be equal for any SKU."""
    if not hasattr(subject.descriptor, "paged_kv"):
        return []
    requests = Requests(subject.descriptor, subject.args(seed))
    order = range(subject.descriptor.batch_size)
    (descriptor, here), (_, there) = requests.batch(order), repaged(requests, seed).batch(order)
    for args in (here, there):
        subject.on(descriptor).run(args)
    pairs = zip(outputs(descriptor, here).items(), outputs(descriptor, there).values(), strict=True)
    return [f"{name} depends on where pages lie" for (name, a), b in pairs if not same_bits(a, b)]


def requests_may_come_in_any_order(subject: Subject, seed: int) -> list[str]:
    order = random.Random(seed).sample(range(subject.descriptor.batch_size), subject.descriptor.batch_size)
    return _compared(subject, seed, order, "in another order")


def an_empty_request_changes_nothing(subject: Subject, seed: int) -> list[str]:
    return _compared(subject, seed, [EMPTY, *range(subject.descriptor.batch_size), EMPTY], "beside an empty request")


def a_request_may_come_twice(subject: Subject, seed: int) -> list[str]:
    batch = subject.descriptor.batch_size
    twice = random.Random(seed).randrange(batch) if batch else 0
    return _compared(subject, seed, [*range(batch), *([twice] if batch else [])], "beside its own copy")


def _compared(subject: Subject, seed: int, order: Sequence[int], how: str) -> list[str]:
    """Compares the bits if the SKU is batch invariant and unchanged, otherwise compares with the bound."""
    requests = Requests(subject.descriptor, subject.args(seed))
    base, first = requests.batch(range(subject.descriptor.batch_size))
    descriptor, second = requests.batch(order)
    plain, other = subject.on(base), subject.on(descriptor)
    plain.run(first)
    other.run(second)
    if invariant(plain) and plain.plan.sku.id == other.plan.sku.id:
        return [f"{name} changed {how}" for name in outputs(base, first) if not _agree(requests, order, first, second, name)]
    report = numerics.check(descriptor, second, other.plan.sku, rows=24, seed=seed)
    return [] if report.worst <= 1 else [f"{how}: {report.worst:.3g} of the bound at {report.where}"]


def _agree(requests: Requests, order: Sequence[int], first: object, second: object, name: str) -> bool:
    import torch

    a, b = bits(getattr(first, name)), bits(getattr(second, name))
    rows = torch.tensor(requests.rows(order), dtype=torch.int64, device=a.device)
    places = torch.tensor(requests.new_rows(order), dtype=torch.int64, device=b.device)
    return torch.equal(a[rows], b[places])


CHECKS = (
    pages_may_lie_anywhere,
    requests_may_come_in_any_order,
    an_empty_request_changes_nothing,
    a_request_may_come_twice,
)
