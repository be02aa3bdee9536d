"""The work of `scripts/sanitize`: every class of SKU once, on inputs of the CPU, so that only our kernels are launched."""

import argparse
import json
import time
from pathlib import Path

import torch

from bench import records
from opfacade import Plan, Preference
from opfacade.backends.cuda.attention import decode as attention_decode
from opfacade.backends.cuda.attention import prefill_pieces
from opfacade.core.target import Target
from opfacade.errors import UnsupportedError
from opfacade.plans._folds.program import FoldOutput
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs.expression import stage, value
from opfacade.programs.fields import Input
from opfacade.programs.stages import Stage
from opfacade.testing import inputs, matrix, numerics, prebuilt
from opfacade.testing.families._problems import case_cache
from opfacade.testing.harness import harness_of
from opfacade.testing.subject import Subject
from opfacade.tools.machine import machine
from tests.support.assemblers import any_assembler

SEEDS = (1, 2)


def _column_sum(rows, columns):
    """A sum of columns that CTAs of a cluster share."""
    stages = (Stage(reducer="sum", value=value("x", "f32")),)
    outputs = (FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(1,)),)
    inputs = (Input(name="x", dtype="f32"),)
    return FoldDescriptor(shape=(rows, columns), fold=(0,), inputs=inputs, stages=stages, outputs=outputs)


# Lanes of one warp end at different times right before a cluster barrier, because only some of them store a result.
APART = {
    "fold-columns-cluster": _column_sum(16401, 64),
    "fold-columns-cluster-spread": _column_sum(16403, 64),
    "decode-cluster-narrow": BatchPagedDecodeDescriptor(
        batch_size=1, num_qo_heads=8, paged_kv=case_cache(64, "f16", 16, "NHD", 8)
    ),
}
SPREAD = ("fold-columns-cluster-spread",)


def kinds():
    """Without those that only the reference or a library computes, and those over ranks: their kernels wait for one another, so
    no single process can run them (tests/distributed holds these)."""
    alone = {kind: d for kind, d in (matrix.matrix() | APART).items() if getattr(d, "world", None) is None}
    with any_assembler():  # an old library must fail, not skip kernels
        return {kind: d for kind, d in alone.items() if _has_kernel(d)}


def _has_kernel(descriptor):
    try:
        Plan.select(descriptor, Preference(backend="cuda"), Target.parse("sm_90a"))
    except UnsupportedError:
        return False
    return True


# These kernels copy the last part of a row by a cp.async of 16 bytes with fewer source bytes (kernels/ptx/cp_async_part.cuh).
# PTX reads only those, and the emulator holds us to them; compute-sanitizer counts all 16 bytes of the vector.
PARTS = ("matmul", "grouped_matmul", "fused_moe")
VECTOR = 16


def filled(size):
    """Bytes on the GPU, all bits one, which is NaN in every floating type: a value that nobody wrote shows in the results."""
    return torch.full((size,), 0xFF, dtype=torch.uint8).cuda()


def whole_vectors(x):
    """A copy of x on the GPU, at the beginning of an allocation that ends with the last vector of x."""
    size = x.numel() * x.element_size()
    bytes_ = torch.full((-(-size // VECTOR) * VECTOR,), 0xFF, dtype=torch.uint8)
    bytes_[:size] = x.reshape(-1).view(torch.uint8)
    return bytes_.cuda()[:size].view(x.dtype).view(x.shape)


def spread(x):
    """Every second element of a wider tensor on the GPU; the others are NaN."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype)
    wide[..., ::2] = x
    return wide.cuda()[..., ::2]


def home(x):
    """The whole of a strided tensor: no kernel gathers its elements."""
    return x.cpu() if x.is_contiguous() else x._base.cpu()[..., ::2]


def on_gpu(args, kind, op):
    """Copies: memory copies only, and nothing left uninitialised but what a caller may leave so."""

    def copy(x):
        if kind in SPREAD and x.ndim > 1:
            return spread(x)
        ends_within = x.numel() * x.element_size() % VECTOR and x.is_contiguous()
        return whole_vectors(x) if op in PARTS and ends_within else x.cuda()

    return _each(args, copy)


def _each(args, copy):
    return type(args)(**{n: copy(t) for n in type(args).__slots__ if (t := getattr(args, n)) is not None})


def counters(plan, workspace):
    """The counters of partial results, which a kernel reads first, whatever they hold: attention/decode/schedule/count.cuh."""
    descriptor, target = plan.descriptor, Target.current()
    if dict(plan.sku.spec).get("split") == "pieces" and descriptor.op != "paged_decode":
        cut_tiles = prefill_pieces.FP8 if plan.sku.impl == "wgmma_fp8_tile" else prefill_pieces.WGMMA
        return workspace[-cut_tiles.counters(descriptor, target) :]
    if descriptor.op != "paged_decode" or not workspace.numel():
        return workspace[:0]
    cut = attention_decode.partition_of(descriptor, target)
    begin = cut.slots * attention_decode.rows_of(descriptor) * descriptor.dim * 4
    return workspace[begin : begin + 8 * cut.counters]


def run(kind, descriptor, seed):
    made = inputs.make_args(
        descriptor, seed, "cpu", harness_of(descriptor).short_lengths(descriptor) if seed == SEEDS[0] else None
    )
    before, args = numerics.snapshot(descriptor, made), on_gpu(made, kind, descriptor.op)
    plan = Subject(descriptor, "cuda", "cuda").plan
    # Uninitialised on purpose: initcheck then sees a read of what the kernels have not written.
    # Rows of a layer of experts end within a vector there too.
    size = plan.workspace_size
    workspace = filled(size) if descriptor.op == "fused_moe" else torch.empty(size, dtype=torch.uint8, device="cuda")
    held = counters(plan, workspace)
    held.copy_(torch.full_like(held, 0xA5, device="cpu"))
    plan.run(args, workspace if size else None)
    torch.cuda.synchronize()
    report = numerics.check(descriptor, _each(args, home), plan.sku, rows=8, before=before)
    if not report.worst <= 1:
        raise SystemExit(f"{kind} seed={seed}: {report.worst:.3g} of the bound at {report.where}")
    print(f"{kind} seed={seed}: {report.worst:.3g} of the bound", flush=True)


def record(rows, out, commit):
    facts = machine("cuda") | {"date": time.strftime("%Y-%m-%d"), "commit": commit}
    result = {"machine": facts, "kinds": list(kinds()), "seeds": len(SEEDS), "tools": rows}
    records.write(out, result)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true", help="only compile")
    parser.add_argument("--record", help="JSON of what each tool said")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="recorded")
    words = parser.parse_args()
    if words.build:
        prebuilt.build(kinds().values())
    elif words.record:
        record(json.loads(words.record), words.out, words.commit)
    else:
        for kind, descriptor in kinds().items():
            for seed in SEEDS:
                run(kind, descriptor, seed)


if __name__ == "__main__":
    main()
