"""Faults in the evidence of claims: batches of units, proofs in processes, digests of kernels."""

from tests.mutation.mutant import host

OWN_BATCHES, PROOFS = "tests/testing/test_batches.py -k seen or holds or same_bits or block", "tests/tools/test_proofs.py"
QKV, MASKS = "testing/families/_qkv_batches.py", "testing/families/_mask_batches.py"

FAULTS = (
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
        "batches of blocks: a unit has the scales of the first block",
        "testing/families/quantize.py",
        'super().rows(order) if name == "scale"',
        '[0 * unit for unit in super().rows(order)] if name == "scale"',
        OWN_BATCHES,
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
)
