"""Candidates for decode: the reference under other names, with flaws and guarantees, and a clock that determines the time of
each.
"""

import random
from dataclasses import replace

from opfacade import errors
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.select.registry import candidates_for
from opfacade.tune.tune import Setup

RAN: list[str] = []


class Clock:
    """Replaces the module `time`: only runs take time, a millisecond each, a slow one twenty."""

    def __init__(self):
        self.now = 0

    def perf_counter_ns(self):
        return self.now


CLOCK = Clock()


def with_guarantee(sku, **flags):
    promise = sku.precision_guarantee.model_copy(update={**flags, "evidence": ("tests/x.py::test_y",)})
    return sku.model_copy(update={"precision_guarantee": promise})


def candidate(name, flaw="", **flags):
    """The reference's decode under another name, with a flaw and with guarantees."""
    (base,) = [c for c in candidates_for(BatchPagedDecodeDescriptor) if c.backend == "reference"]

    def launcher(descriptor, target, sku, allow):
        launch = base.launcher(descriptor, target, sku, allow)

        def run(args, workspace):
            RAN.append(name)
            CLOCK.now += 20_000_000 if flaw == "slow" else 1_000_000
            if flaw == "raises":
                raise errors.CompileError("no luck")
            if flaw != "writes nothing":
                launch(args, workspace)
            if flaw == "wrong":
                args.o.add_(0.5)

        return run

    def sku(descriptor, target):
        plain = base.sku(descriptor, target)
        return with_guarantee(plain.model_copy(update={"spec": (("way", name),)}), **flags).revalidated()

    return replace(base, launcher=launcher, sku=sku, config="" if name == "plain" else name)


def clock(spread=0.0, seed=0, **times):
    """A timer that gives each candidate its time."""
    rng = random.Random(seed)

    def timer(call):
        call()
        return times[RAN[-1]] * rng.lognormvariate(0, spread)

    return Setup(timer=timer)


def way(sku_id):
    return sku_id.split("way=")[1].split("/")[0]
