"""Every select, build, load and run as it happens, and the counters of a process."""

import torch
from common import bf16

from opfacade import telemetry
from opfacade.plans.softmax import SoftmaxArgs, SoftmaxDescriptor, SoftmaxPlan

events = []
unsubscribe = telemetry.subscribe(events.append)
x = bf16(3, 40)
plan = SoftmaxPlan.select(SoftmaxDescriptor(shape=(3, 40), dtype="bf16"))
for _ in range(2):
    plan.run(SoftmaxArgs(x=x, out=torch.empty_like(x)))
unsubscribe()
print(*events, sep="\n")
assert [event["event"] for event in events if event.get("sku") == plan.sku.id][-2:] == ["run", "run"]
assert telemetry.snapshot()[plan.sku.id]["runs"] >= 2
