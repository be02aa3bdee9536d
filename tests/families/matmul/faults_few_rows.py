"""Faults in products of few rows, and in calls of cuBLASLt."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/matmul/test_gemv_kernel.py"
LIBRARY = "tests/families/matmul/test_cublaslt.py"
BACKEND = "opfacade/backends/library"


def few(name, old, new, tests="of_many", file="kernels/matmul/gemv.cuh"):
    return cpu(f"products of few rows: {name}", file, old, new, f"{KERNEL} -k {tests}")


def library(name, old, new, tests, file="cublaslt_product.py"):
    return cpu(f"products by cuBLASLt: {name}", f"{BACKEND}/{file}", old, new, f"{LIBRARY} -k {tests}")


FAULTS = (
    few("a stage is not waited for", "cp_async_wait<C::kStages - 3>();", "cp_async_wait<C::kStages - 1>();"),
    few("the stage behind is not waited for", "cp_async_wait<C::kStages - 3>();", "cp_async_wait<C::kStages - 2>();"),
    few("the last stages do not come", "copy(step + C::kStages - 1);", "copy(step + C::kStages);"),
    few("a stage is overwritten before it is read", "copy(step + C::kStages - 1);", "copy(step + C::kStages);\n    copy(step);",
        "bound"),
    few("elements behind a line are copied", "min(max(after - at, 0), 8) * 2", "16"),
    few("elements behind a short line are copied", "j < after - at ? line[i][at + j] : 0;", "line[i][at + j];"),
    few("the begin of a line is not copied", "for (int j = -at; j < 8; ++j)", "for (int j = 8; j < 8; ++j)"),
    few("the first segment is lost", "float4(sums[0], sums[1], sums[2], sums[3]);",
        "float4(sums[0], sums[1], sums[2], sums[3]);\n    if (warp == 0) sums[0] = 0.f;", "bound"),
    few("one segment is lost", "other < static_cast<int>(blockDim.x / 32)", "other < static_cast<int>(blockDim.x / 32) - 1",
        "bound"),
    few("every segment is the first", "begin = C::kSegmented ? warp * p.segment : 0,", "begin = 0,", "bound"),
    few("rows that are not valid are written", "max(0, min(p.rows, *p.num_valid))", "p.rows", "valid_ones"),
    few("where a line begins is lost", "over(p.weight, column + lane / 4),", "0,"),
    few("where a row of x begins is lost", "over(p.x, lane / 4),", "0,"),
    few("pairs off a word are not shifted", ">> byte % 4 * 8);", ");"),
    few("half of a step is read twice", "of.weight_over, element + 8));", "of.weight_over, element));", "bound"),
    few("each batch has the first operands", "batch * of.batch + at * of.row + begin;", "at * of.row + begin;", "bound"),
    few("both warps have the same columns", "(C::kSegmented ? 0 : warp * kGemvColumns)", "0", "bound"),
    few("warps have the rings of the first", "dynamic_shared() + warp * (kGemvColumns", "dynamic_shared() + 0 * (kGemvColumns",
        "bound"),
    few("lines that are not aligned are taken for aligned", "return of.row % 8 == 0 &&", "return",
        file="csrc/matmul/gemv.cc.jinja"),
    few("columns are counted for one warp", "each = kColumns * warps", "each = kColumns * warps * 2",
        file="csrc/matmul/gemv.cc.jinja", tests="bound"),
    library("parts of a sum may be rounded", "if scheme not in (abi.REDUCTION_NONE, abi.REDUCTION_COMPUTE_TYPE):",
            "if scheme is None:", "ignores"),
    library("any implementation is taken", "return not flags & ~abi.IMPLEMENTATIONS[self._facts.dtype]",
            "return flags != 0", "ignores"),
    library("the request does not exclude parts in 16 bits", "ctypes.c_uint32(abi.REDUCTION_COMPUTE_TYPE)",
            "ctypes.c_uint32(7)", "rounds_parts"),
    library("operands are transposed the other way round", "(abi.DESC_TRANSA, abi.DESC_TRANSB)",
            "(abi.DESC_TRANSB, abi.DESC_TRANSA)", "formula"),
    library("a larger workspace than there is", "result.workspace_size > self._facts.workspace:", "False:", "ignores"),
    library("a batch has one matrix", "ctypes.c_int64(matrix.far)", "ctypes.c_int64(0)", "formula"),
    library("addresses count as aligned", "min(address & -address, _MOST_ALIGNED) if address", "_MOST_ALIGNED if address",
            "choose_again"),
    library("the address of bias is the first one", "ctypes.c_void_p(call.bias))", "ctypes.c_void_p(self._facts.bias))",
            "formula"),
    library("f32 may be multiplied as TF32", '"f32": COMPUTE_32F_PEDANTIC,', '"f32": COMPUTE_32F,', "formula",
            "cublaslt_abi.py"),
    library("beta is 1", "number(problem.beta if", "number(1.0 if", "formula", "matmul.py"),
    library("old results are what is added", "out if problem.accumulate else args.add if",
            "out if problem.add else args.add if", "formula", "matmul.py"),
    library("rows may overlap", "0 < tensor.stride(-2) < tensor.shape[-1]", "0 > tensor.stride(-2)", "overlapping",
            "matmul.py"),
    library("a size of 0 is kept for other sizes", "(*_unfit(problem, target), *_sizes(problem))", "_unfit(problem, target)",
            "refused", "matmul.py"),
)  # fmt: skip
