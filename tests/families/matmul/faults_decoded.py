"""Faults in products of codes that are decoded to a workspace first."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/matmul/test_decoded_kernel.py"
WIDEN = "kernels/matmul/coded/widen.cuh"
HOST = "opfacade/backends/cuda/matmul/decoded.py"
BITS = f"{KERNEL} -k bits and uint4"
COLUMNS = f"{KERNEL} -k columns and uint4 and 64"
SIZES = f"{KERNEL} -k first or workspace or promise"

CHAIN = "tests/families/matmul/test_decoded_chain.py"
WEIGHT, TABLES = "kernels/matmul/decode_weight.cuh", "kernels/matmul/code_tables.cuh"
BEFORE = "opfacade/backends/cuda/matmul/decoded_chain.py"


def chain(name, old, new, tests, file=WEIGHT):
    return cpu(f"weights decoded to one chain: {name}", file, old, new, f"{CHAIN} -k {tests}")


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
    chain("an element has the group of its neighbour", "p.weight_groups[k + i]", "p.weight_groups[k + (i ^ 1)]", "table_names",
          TABLES),
    chain("an element of no group has the first zero point", "(valid ? found : p.num_groups) * 16", "(valid ? found : 0) * 16",
          "table_names", TABLES),
    chain("an element of no group has a code", "codes.y & mask.y) : codes", "codes.y) : codes", "nan", TABLES),
    chain("the last group is none", "static_cast<uint32_t>(p.num_groups);\n        place",
          "static_cast<uint32_t>(p.num_groups - 1);\n        place", "table_names", TABLES),
    chain("groups after the first 32 are the first", "        at[i].advance_groups(p, 32);\n", "", "table_names", TABLES),
    chain("four columns have the table of the first", "i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w", "of.x",
          "table_names", TABLES),
    chain("a product has the table of the first", "batch * p.weight_scale.batch", "0", "inside_a_group", TABLES),
    chain("a product has the codes of the first", "batch * p.weight.batch", "0", "inside_a_group"),
    chain("a slice begins with its first group", "(first + p.group_offset) /", "first /", "inside_a_group"),
    chain("the last line is lost", "(p.k + kDecodePart - 1) / kDecodePart", "p.k / kDecodePart", "bits and last"),
    chain("columns have the codes of the first", "codes += stride * p.weight.row, ", "", "inside_a_group"),
    chain("a warp has one part of k", "part += beside", "part += parts", "bits and parts"),
    chain("a number has its first term twice", "if constexpr (C::kTerms == 2) store_vector(out + p.out.batch, numbers.behind);",
          "if constexpr (C::kTerms == 2) store_vector(out + p.out.batch, numbers.pairs);", "any_batch and two"),
    chain("a second product has the terms of the first", "tile.weight * C::kTerms + term)", "term)", "bits and products",
          "kernels/matmul/load.cuh"),
    chain("copied terms are the first", "only.batch + term,", "only.batch,", "any_batch and two", "kernels/matmul/load.cuh"),
    chain("two terms have a place for one", "* terms(problem.weight_format, problem.dtype)", "", "workspace_is", BEFORE),
    chain("lines are not whole chunks", "-(-problem.k // _EACH) * _EACH", "problem.k", "workspace_is", BEFORE),
    chain("few rows of every format decode first", "return first + nanoseconds", "return 0 * first + 0 * nanoseconds",
          "rows_of_other", BEFORE),
    chain("an activation order is decoded as fast as others", "rate = _IN_ORDER if", "rate = _IN_SEQUENCE if", "any_rows",
          BEFORE),
    decoded("few rows decode first", "if sizes.rows <= _FEW:", "if sizes.rows < 0:", SIZES, HOST),
)  # fmt: skip
