"""Ranks as threads of one process: a group whose exchange is a list, so that arithmetic is tested without connections."""

import threading

import torch

_TIMEOUT = 30


class LocalGroup:
    """One rank of `ranks(world)`. It reserves nothing and never fails."""

    fill_id, link = -1, None

    def __init__(self, rank, world, shared):
        self.name, self.rank, self.world, self._shared = f"local-{rank}", rank, world, shared

    def issues(self, descriptor):
        return []

    def exchange(self, descriptor, outgoing, facts):
        barrier, sent = self._shared
        sent[self.rank] = (facts, [t.clone() for t in outgoing])
        barrier.wait(_TIMEOUT)
        assert len({facts for facts, _ in sent.values()}) == 1
        found = [sent[r][1][self.rank] for r in range(self.world)]
        barrier.wait(_TIMEOUT)
        return found


def on_ranks(world, call):
    """[call(group) of every rank], each in a thread of its own; the first error is raised."""
    shared, found, errors = (threading.Barrier(world), {}), [None] * world, []

    def run(rank):
        try:
            found[rank] = call(LocalGroup(rank, world, shared))
        except BaseException as error:  # the others must not wait for a thread that ended
            errors.append(error)
            shared[0].abort()

    threads = [threading.Thread(target=run, args=(r,)) for r in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT)
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return found


def same(tensors):
    """Whether all have the same bits."""
    first = tensors[0]
    return all(torch.equal(t.view(torch.uint8), first.view(torch.uint8)) for t in tensors)
