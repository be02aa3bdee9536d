"""Faults in what claims stand on: batches of units, proofs in processes, digests of kernels."""

from tests.mutation.mutant import host

OWN_BATCHES, PROOFS = "tests/testing/test_batches.py -k seen or holds or same_bits or block", "tests/tools/test_proofs.py"
QKV, MASKS = "testing/families/_qkv_batches.py", "testing/families/_mask_batches.py"

FAULTS = (
    host(
        "batches of qkv_prepare: pools keep what an earlier batch stored",
        QKV,
        "fill(getattr(args, name).clone(), math.nan)",
        "getattr(args, name)",
        OWN_BATCHES,
    ),
    host(
        "batches of qkv_prepare: the first token of a page is compared",
        QKV,
        "[page, token]",
        "[page, token * 0]",
        OWN_BATCHES,
    ),
    host(
        "batches of masks: starts of packed masks are not compared",
        MASKS,
        "sizes = args.packed_indptr[1:] - args.packed_indptr[:-1]",
        "sizes = 0 * args.packed_indptr[1:]",
        OWN_BATCHES,
    ),
    host(
        "batches of masks: bytes are those of the first request",
        MASKS,
        "return [byte for unit in order if unit != EMPTY for byte in range(starts[unit], starts[unit + 1])]",
        "return [byte for unit in order if unit != EMPTY for byte in range(starts[unit + 1] - starts[unit])]",
        OWN_BATCHES,
    ),
    host(
        "batches of blocks: every row is a unit",
        "testing/families/quantize.py",
        "kind = BlockBatches if",
        "kind = DenseBatches if",
        OWN_BATCHES,
    ),
    host(
        "batches of blocks: a unit has the scales of the first block",
        "testing/families/quantize.py",
        'super().rows(order) if name == "scale"',
        '[0 * unit for unit in super().rows(order)] if name == "scale"',
        OWN_BATCHES,
    ),
    host(
        "verify: a check that raises has found nothing",
        "tools/verify.py",
        'return {"wrong": [f"{type(error).__name__}: {error}"]}',
        'return {"wrong": []}',
        "tests/tools/test_verify.py -k raises",
    ),
    host(
        "proofs in processes: lines of other processes are lost",
        "tools/proofs.py",
        "for line in lines:",
        "for line in lines[:0]:",
        PROOFS,
    ),
    host(
        "proofs in processes: the last result is left out",
        "tools/proofs.py",
        "pool.map(_with_lines, proofs)",
        "pool.map(_with_lines, proofs[:-1])",
        PROOFS,
    ),
    host(
        "proofs in processes: one that dies ends in an error of the pool",
        "tools/proofs.py",
        "except BrokenProcessPool:",
        "except LookupError:",
        PROOFS,
    ),
    host(
        "proofs in processes: all are on the first GPU",
        "tools/proofs.py",
        "torch.cuda.set_device(number % torch.cuda.device_count())",
        "torch.cuda.set_device(0)",
        PROOFS,
    ),
    host(
        "digests: a compiler that is too old hides why a kernel does not fit",
        "backends/cuda/attention/prefill_pieces.py",
        "any(reason.code != COMPILER_TOO_OLD for reason in reasons)",
        "reasons",
        "tests/tools/test_kernel_digests.py",
    ),
)
