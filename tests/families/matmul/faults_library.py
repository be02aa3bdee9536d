"""Faults in calls of cuBLASLt."""

from tests.mutation.mutant import cpu

LIBRARY = "tests/families/matmul/test_cublaslt.py"
BACKEND = "opfacade/backends/library"


def library(name, old, new, tests, file="cublaslt_product.py"):
    return cpu(f"products by cuBLASLt: {name}", f"{BACKEND}/{file}", old, new, f"{LIBRARY} -k {tests}")


def kept(name, old, new, tests, file="matmul_algorithms.py"):
    test = f"tests/families/matmul/test_cublaslt_kept.py -k {tests}"
    return cpu(f"algorithms of cuBLASLt: {name}", f"{BACKEND}/{file}", old, new, test)


FAULTS = (
    library("parts of a sum may be rounded", "if scheme not in (abi.REDUCTION_NONE, abi.REDUCTION_COMPUTE_TYPE):",
            "if scheme is None:", "ignores"),
    library("any implementation is taken", "return not flags & ~abi.IMPLEMENTATIONS[self._facts.products]",
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
    library("relu is left out", "(abi.EPILOGUE_RELU if facts.relu else 0)", "0", "formula"),
    library("relu comes after what is added", "or problem.add or problem.accumulate else (", "else (",
            "refused", "matmul.py"),
    library("beta is 1", "number(problem.beta if", "number(1.0 if", "formula", "matmul.py"),
    library("old results are what is added", "out if problem.accumulate else args.add if",
            "out if problem.add else args.add if", "formula", "matmul.py"),
    library("rows may overlap", "0 < tensor.stride(-2) < tensor.shape[-1]", "0 > tensor.stride(-2)", "overlapping",
            "matmul.py"),
    library("a size of 0 is kept for other sizes", "(*_unfit(problem, target), *_sizes(problem))", "_unfit(problem, target)",
            "refused", "matmul.py"),
    kept("an algorithm is kept for all sizes", "words = (plain.digest(), ", "words = (plain.dtype, ", "sizes_device"),
    kept("any device has it", "hardware_stamp.hardware(target), version)", "version)", "sizes_device"),
    kept("any version has it", "hardware_stamp.hardware(target), version)", "hardware_stamp.hardware(target))", "sizes_device"),
    kept("the library's own choice runs", "library.handle(device), facts, stored)", "library.handle(device), facts)",
         "as_it_is_named", "matmul.py"),
    kept("heuristics claim bits that repeat", "algo != _HEURISTIC),", "True),", "they_alone", "matmul.py"),
)  # fmt: skip
