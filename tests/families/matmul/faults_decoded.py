"""Faults in products of codes that are decoded to a workspace first."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/matmul/test_decoded_kernel.py"
WIDEN = "kernels/matmul/coded/widen.cuh"
HOST = "opfacade/backends/cuda/matmul/decoded.py"
BITS = f"{KERNEL} -k bits and uint4"
COLUMNS = f"{KERNEL} -k columns and uint4 and 64"
SIZES = f"{KERNEL} -k first or workspace or promise"


def decoded(name, old, new, tests=BITS, file=WIDEN):
    return cpu(f"products of decoded codes: {name}", file, old, new, tests)


FAULTS = (
    decoded("all codes of a word are those of its first byte", "words[0] >> 8 * i & 255", "words[0] & 255", COLUMNS),
    decoded("all parts have the codes of the first", "codes, column, first + 256 * i);", "codes, column, first);", COLUMNS),
    decoded("a column has the tables of its first group", "entry = tables.read(column, k);", "entry = tables.read(column, 0);",
            COLUMNS),
    decoded("a byte off four is lost", "static_cast<uint32_t>(from[i]) <<", "static_cast<uint32_t>(from[0]) <<"),
    decoded("the last part of a column is lost", "(p.k + kWidenPart - 1) / kWidenPart", "p.k / kWidenPart"),
    decoded("the second weight has the codes of the first", "batch * p.weight.batch + column", "column"),
    decoded("the second weight has the tables of the first", "    tables.batch = batch;\n", ""),
    decoded("k is one chain", "segments = matmul_coded.segments_of(n, problem.k)", "segments = None", SIZES, HOST),
    decoded("gates have no place in the workspace", "bytes_of(problem.batch * problem.n * problem.columns * problem.k)",
            "bytes_of(problem.batch * problem.n * problem.k)", SIZES, HOST),
    decoded("a workspace is never worth it", "return first + wide < matmul_coded",
            "return first + wide < 0 * matmul_coded", SIZES, HOST),
    decoded("few rows decode first", "if sizes.rows <= _FEW:", "if sizes.rows < 0:", SIZES, HOST),
)  # fmt: skip
