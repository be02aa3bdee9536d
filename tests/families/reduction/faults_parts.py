"""Faults in rows of folds that begin anywhere, and in rows that are cut into parts."""

from tests.mutation.mutant import cpu

PARTS = "tests/families/reduction/test_parts.py -k bits"
D = "kernels/reduction"

FAULTS = (
    cpu(
        "fold: a CTA of a row writes none but the first part",
        f"{D}/fold.cuh",
        "const int first = first_piece(), end = end_piece(),",
        "const int first = first_piece(), end = min(end_piece(), M::kRun),",
        PARTS,
    ),
    cpu(
        "fold: the number of CTAs decides where a row is cut",
        f"{D}/fold.cuh",
        "return (pieces() + M::kRun - 1) / M::kRun; }",
        "return p.ctas; }",
        PARTS,
    ),
)
