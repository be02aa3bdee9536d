"""Faults in rows of folds that begin anywhere, and in rows that are cut into parts."""

from tests.mutation.mutant import cpu

ODD = "tests/families/reduction/test_odd_rows.py"
PARTS = "tests/families/reduction/test_parts.py -k bits"
D = "kernels/reduction"

FAULTS = (
    cpu(
        "vectors anywhere: bytes of a word are shifted the other way",
        "kernels/elementwise/shift.cuh",
        "word[i] = __byte_perm(word[i], word[i + 1], order);",
        "word[i] = __byte_perm(word[i + 1], word[i], order);",
        f"{ODD} -k begin_anywhere",
    ),
    cpu(
        "vectors anywhere: the second half of a piece is not shifted",
        "kernels/elementwise/shift.cuh",
        "word[i] = bytes & 8 ? word[i + 2] : word[i];",
        "word[i] = word[i];",
        f"{ODD} -k begin_anywhere",
    ),
    cpu(
        "vectors anywhere: a piece past the end of a tensor is read",
        "kernels/elementwise/pack.cuh",
        "(i > 0 || first >= 0) && first + kAccess <= span * kSize;",
        "(i > 0 || first >= 0);",
        f"{ODD} -k outside_of_a_tensor",
    ),
    cpu(
        "vectors anywhere: a piece before a tensor is read",
        "kernels/elementwise/pack.cuh",
        "(i > 0 || first >= 0) && first + kAccess",
        "first + kAccess",
        f"{ODD} -k outside_of_a_tensor",
    ),
    cpu(
        "vectors anywhere: what was not read is taken for 0",
        "kernels/elementwise/pack.cuh",
        "return count > 0 && (pieces.first < 0 || end > span * kSize);",
        "return false;",
        f"{ODD} -k begin_anywhere",
    ),
    cpu(
        "vectors anywhere: the first lane stores a piece that begins before its row",
        "kernels/elementwise/pack.cuh",
        "(i > 0 || lane != 0 || shift == 0)",
        "true",
        f"{ODD} -k begin_anywhere",
    ),
    cpu(
        "vectors anywhere: the last lane leaves its last elements to the next one",
        "kernels/elementwise/pack.cuh",
        "(i < kPieces || lane != lanes - 1);",
        "true;",
        f"{ODD} -k begin_anywhere",
    ),
    cpu(
        "fold: rows of a vector a lane of one warp move by shifted vectors",
        "opfacade/backends/cuda/fold_config.py",
        "return shape.threads * shape.pieces > 32 and (",
        "return (",
        f"{ODD} -k takes_less_time",
    ),
    cpu(
        "fold: long rows that are read once move by shifted vectors",
        "opfacade/backends/cuda/fold_config.py",
        "> 32 and (shape.held or not read_once(program))",
        "> 32",
        f"{ODD} -k takes_less_time",
    ),
    cpu(
        "fold: the vector of another slot is mended",
        f"{D}/fold.cuh",
        "if (i == slot) M::replace(held[i], found);",
        "if (i == 0) M::replace(held[i], found);",
        f"{ODD} -k begin_anywhere",
    ),
    cpu(
        "fold: CTAs of a row that is cut into parts do not wait for each other",
        f"{D}/join.cuh",
        "if (alone) __syncthreads();\n  else cluster_sync();",
        "__syncthreads();",
        PARTS,
    ),
    cpu(
        "fold: a CTA ends while others read the states of its parts",
        f"{D}/fold.cuh",
        "else if (M::kRun > 0 && M::kClusters && p.ctas > 1) cluster_arrive(), cluster_wait();",
        "",
        PARTS,
    ),
    cpu(
        "fold: states of parts are read from the first CTA",
        f"{D}/join.cuh",
        "owner = alone ? 0 : ((part + 1) * ctas - 1) / parts;",
        "owner = 0;",
        PARTS,
    ),
    cpu(
        "fold: a part of a row is left out where a CTA has several",
        f"{D}/fold.cuh",
        "for (int part = from; part < part_of(row.rank + 1); ++part) {",
        "for (int part = from; part < from + 1; ++part) {",
        PARTS,
    ),
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
