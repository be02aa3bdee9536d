"""Cost of torch.ops.opfacade over `plan.run`, in microseconds: `python -m bench.torch_ops [--out FILE]`. Needs no GPU.

Uses the CUDA launcher with a stub driver, as in bench/host.py; torch, Python and the host library are real. run: a plan with a
new bundle for each call, as a layer does. op, op_named: torch.ops.opfacade.paged_decode with operands by position, and by name.
functional: the form that makes its outputs. bundle: making the bundle, which `run` includes. run_same: the identical bundle.
compiled: the op in a graph of torch.compile (backend "eager"), minus an empty graph with the same inputs. Needs nvcc and g++.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import timeit

import torch

import opfacade.torch_ops  # noqa: F401 (defines the ops)
from bench import records
from bench.host import CACHE, stub_plan
from opfacade.plans.attention import BatchPagedDecodeArgs, BatchPagedDecodeDescriptor
from opfacade.testing import inputs

BATCH = 16


def microseconds(call) -> float:
    """The best of 300 means of 100 calls; a short series is less affected by other load."""
    return round(min(timeit.repeat(call, number=100, repeat=300)) / 100 * 1e6, 3)


def placed(op, args) -> list:
    """The operands of a call by position in the op's schema, up to the last one present."""
    found = [getattr(args, argument.name, None) for argument in op._schema.arguments[1:]]
    return found[: 1 + max(i for i, value in enumerate(found) if value is not None)]


def measure() -> dict[str, float]:
    descriptor = BatchPagedDecodeDescriptor(batch_size=BATCH, num_qo_heads=32, paged_kv=CACHE, page_table="block")
    pair = [inputs.make_args(descriptor, seed=s, lengths=inputs.DrawnLengths(kv=[40] * BATCH)) for s in (1, 2)]
    driver, plan, _ = stub_plan(descriptor, pair)
    ops, a, handle = torch.ops.opfacade, pair[0], plan.handle
    table = {"block_table": a.block_table, "kv_lens": a.kv_lens}
    op = ops.paged_decode.default
    functional = ops.paged_decode_functional.default
    in_order, given = placed(op, a), placed(functional, a)
    places = [i for i, t in enumerate(in_order) if t is not None]

    def bundle():
        return BatchPagedDecodeArgs(q=a.q, k_data=a.k_data, v_data=a.v_data, o=a.o, lse=a.lse, **table)

    def graph(handle, *tensors):
        every = dict(zip(places, tensors, strict=True))
        op(handle, *(every.get(i) for i in range(len(in_order))))
        return tensors[0].view(-1)

    def empty(handle, *tensors):
        return tensors[0].view(-1)

    present = tuple(t for t in in_order if t is not None)
    compiled, nothing = (torch.compile(f, backend="eager", fullgraph=True, dynamic=False) for f in (graph, empty))
    compiled(handle, *present), nothing(handle, *present)
    before = driver.launches
    with torch.no_grad():
        found = {
            "run": microseconds(lambda: plan.run(bundle())),
            "op": microseconds(lambda: op(handle, *in_order)),
            "op_named": microseconds(lambda: ops.paged_decode(handle, a.q, a.k_data, a.v_data, o=a.o, lse=a.lse, **table)),
            "functional": microseconds(lambda: functional(handle, *given)),
            "bundle": microseconds(bundle),
            "run_same": microseconds(lambda: plan.run(a)),
        }
        assert driver.launches == before + 5 * 300 * 100
        found["compiled"] = round(
            microseconds(lambda: compiled(handle, *present)) - microseconds(lambda: nothing(handle, *present)), 3
        )
    return found | {"op_over_run": round(found["op"] - found["run"], 3)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    records.add_commit(parser)
    records.add_out(parser, "torch_ops")
    options = parser.parse_args(argv)
    out = records.place(options.out, "torch_ops")
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": records.commit(options.commit),
    }
    record = {"machine": machine, "us": measure()}
    print(json.dumps(record, indent=1))
    records.write(out, record)


if __name__ == "__main__":
    main()
