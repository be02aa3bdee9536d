"""The part of cuBLASLt's C interface that we call: prototypes, structures and constants, declared by hand, so that no cuBLAS
header is needed.

Types and numbers are from the cuBLASLt documentation and stable across versions; `tests/families/matmul/test_cublaslt_abi.py`
compares this file with the documented prototypes.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, ClassVar


class Algo(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque; it may be stored and reused with the same version of the library."""

    _fields_: ClassVar[list[Any]] = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t. state: a status, of this result alone."""

    _fields_: ClassVar[list[Any]] = [
        ("algo", Algo),
        ("workspace_size", c_size_t),
        ("state", c_int),
        ("waves_count", c_float),
        ("reserved", c_int * 4),
    ]


_MADE = POINTER(c_void_p)
_SET = (c_void_p, c_int, c_void_p, c_size_t)
_LAYOUTS = (c_void_p,) * 4
_ALGO_GET = (POINTER(Algo), c_int, c_void_p, c_size_t, POINTER(c_size_t))

# Function name: result type and argument types. Enumerations are int; handles and descriptors are void*.
PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cublasLtGetVersion": (c_size_t, ()),
    "cublasLtCreate": (c_int, (_MADE,)),
    "cublasLtMatmulDescCreate": (c_int, (_MADE, c_int, c_int)),
    "cublasLtMatmulDescDestroy": (c_int, (c_void_p,)),
    "cublasLtMatmulDescSetAttribute": (c_int, _SET),
    "cublasLtMatrixLayoutCreate": (c_int, (_MADE, c_int, c_uint64, c_uint64, c_int64)),
    "cublasLtMatrixLayoutDestroy": (c_int, (c_void_p,)),
    "cublasLtMatrixLayoutSetAttribute": (c_int, _SET),
    "cublasLtMatmulPreferenceCreate": (c_int, (_MADE,)),
    "cublasLtMatmulPreferenceDestroy": (c_int, (c_void_p,)),
    "cublasLtMatmulPreferenceSetAttribute": (c_int, _SET),
    "cublasLtMatmulAlgoGetHeuristic": (
        c_int,
        (c_void_p, c_void_p, *_LAYOUTS, c_void_p, c_int, POINTER(HeuristicResult), POINTER(c_int)),
    ),
    "cublasLtMatmulAlgoCheck": (c_int, (c_void_p, c_void_p, *_LAYOUTS, POINTER(Algo), POINTER(HeuristicResult))),
    "cublasLtMatmulAlgoConfigGetAttribute": (c_int, _ALGO_GET),
    "cublasLtMatmulAlgoCapGetAttribute": (c_int, _ALGO_GET),
    "cublasLtMatmul": (
        c_int,
        (
            *(c_void_p, c_void_p, c_void_p),  # handle, description, alpha
            *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),  # A and its layout, B and its layout, beta
            *(c_void_p, c_void_p, c_void_p, c_void_p),  # C and its layout, D and its layout
            *(POINTER(Algo), c_void_p, c_size_t, c_void_p),  # algorithm, workspace and its bytes, stream
        ),
    ),
}

SUCCESS = 0
STATUSES = {
    0: "CUBLAS_STATUS_SUCCESS",
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}

DATA_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}  # cudaDataType_t
OP_N, OP_T = 0, 1  # cublasOperation_t

# cublasComputeType_t. The pedantic ones use the arithmetic of the type in all phases: neither TF32 nor emulation, also where
# an environment variable requests it. Products of 16-bit types are exact in f32, and emulation does not apply to them.
COMPUTE_32F, COMPUTE_32F_PEDANTIC, COMPUTE_64F_PEDANTIC, COMPUTE_32F_FAST_TF32 = 68, 69, 71, 77
COMPUTE_TYPES = {
    "f16": COMPUTE_32F,
    "bf16": COMPUTE_32F,
    "f32": COMPUTE_32F_PEDANTIC,
    "tf32": COMPUTE_32F_FAST_TF32,
    "f64": COMPUTE_64F_PEDANTIC,
}

# cublasLtMatmulDescAttributes_t
DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS_POINTER, DESC_FAST_ACCUM = 3, 4, 7, 8, 25
EPILOGUE_DEFAULT, EPILOGUE_RELU, EPILOGUE_BIAS = 1, 2, 4  # cublasLtEpilogue_t; the last two may be combined

LAYOUT_BATCH_COUNT, LAYOUT_STRIDED_BATCH_OFFSET = 5, 6  # cublasLtMatrixLayoutAttribute_t

# cublasLtMatmulPreferenceAttributes_t
PREF_MAX_WORKSPACE_BYTES, PREF_REDUCTION_SCHEME_MASK = 1, 3
PREF_MIN_ALIGNMENTS = (5, 6, 7, 8)  # attributes of A, B, C, D
PREF_IMPL_MASK = 12

CONFIG_SPLITK_NUM, CONFIG_REDUCTION_SCHEME = 2, 3  # cublasLtMatmulAlgoConfigAttributes_t
CAP_NUMERICAL_IMPL_FLAGS = 15  # cublasLtMatmulAlgoCapAttributes_t

# cublasLtReductionScheme_t. The in-place and output-type schemes round partial sums to the output type.
REDUCTION_NONE, REDUCTION_INPLACE, REDUCTION_COMPUTE_TYPE, REDUCTION_OUTPUT_TYPE = 0, 1, 2, 4

# cublasLtNumericalImplFlags_t: instruction, accumulator, inputs of the instruction.
_FMA, _HMMA, _DMMA = 0x01, 0x02, 0x08
_ACCUMULATOR_32F, _ACCUMULATOR_64F = 0x02 << 8, 0x04 << 8
_INPUT_16F, _INPUT_16BF, _INPUT_TF32, _INPUT_32F, _INPUT_64F = 0x01 << 16, 0x02 << 16, 0x04 << 16, 0x08 << 16, 0x10 << 16

# By the type of the products, the implementations that keep our bound: no accumulator in f16, no emulation in parts, and TF32
# only where the descriptor permits it.
# The fastest kernels of 13.1 for sm_90 say that bf16 operands are f16; a test on a GPU multiplies numbers that f16 lacks.
IMPLEMENTATIONS = {
    "f16": _FMA | _HMMA | _ACCUMULATOR_32F | _INPUT_16F | _INPUT_32F,
    "bf16": _FMA | _HMMA | _ACCUMULATOR_32F | _INPUT_16F | _INPUT_16BF | _INPUT_32F,
    "f32": _FMA | _ACCUMULATOR_32F | _INPUT_32F,
    "tf32": _FMA | _HMMA | _ACCUMULATOR_32F | _INPUT_TF32 | _INPUT_32F,
    "f64": _FMA | _DMMA | _ACCUMULATOR_64F | _INPUT_64F,
}
