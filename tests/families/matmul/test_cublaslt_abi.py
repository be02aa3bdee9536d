"""Our declarations of cuBLASLt, compared with the prototypes and numbers in its documentation."""

import ctypes
import re

import pytest

from opfacade.backends.library import cublaslt_abi as abi

# Section 3.4 of the cuBLAS documentation, names of parameters left out.
DOCUMENTED = """
size_t cublasLtGetVersion(void)
cublasStatus_t cublasLtCreate(cublasLtHandle_t *)
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t)
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t)
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t)
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t)
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t)
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t)
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *)
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t)
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
  cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t)
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
  cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
  cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *)
cublasStatus_t cublasLtMatmulAlgoCheck(
  cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
  cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, cublasLtMatmulHeuristicResult_t *)
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(
  const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *, size_t, size_t *)
cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(
  const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoCapAttributes_t, void *, size_t, size_t *)
cublasStatus_t cublasLtMatmul(
  cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *,
  cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
  const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t)
"""
# Handles, descriptors and streams are pointers to structures that only the library knows; the other names are enumerations.
POINTERS = {
    "cublasLtHandle_t", "cublasLtMatmulDesc_t", "cublasLtMatrixLayout_t", "cublasLtMatmulPreference_t",
    "cudaStream_t", "void *",
}  # fmt: skip
SCALARS = {"size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "int": ctypes.c_int}
STRUCTURES = {"cublasLtMatmulAlgo_t": abi.Algo, "cublasLtMatmulHeuristicResult_t": abi.HeuristicResult}


def kind_of(text):
    name = re.sub(r"\s+", " ", text.replace("const ", "").strip())
    if name in POINTERS:
        return ctypes.c_void_p
    if name.endswith(" *"):
        of = name[:-2]
        return ctypes.POINTER(STRUCTURES[of] if of in STRUCTURES else kind_of(of))
    return SCALARS.get(name, ctypes.c_int)


PARSED = {
    name: (kind_of(result), () if given.strip() == "void" else tuple(kind_of(one) for one in given.split(",")))
    for result, name, given in re.findall(r"(\w+) (\w+)\(([^)]*)\)", DOCUMENTED)
}


def test_every_function_is_documented_and_no_other_is_called():
    assert set(abi.PROTOTYPES) == set(PARSED)
    assert len(PARSED) == 16


@pytest.mark.parametrize("name", PARSED)
def test_a_prototype_is_the_documented_one(name):
    assert abi.PROTOTYPES[name] == PARSED[name]


def test_structures_have_the_documented_sizes():
    """An algorithm is 8 words of 64 bits; a result adds size_t, a status, float and 4 reserved int."""
    assert ctypes.sizeof(abi.Algo) == 64
    assert ctypes.sizeof(abi.HeuristicResult) == 64 + 8 + 4 + 4 + 16
    assert abi.HeuristicResult.workspace_size.offset == 64
    assert abi.HeuristicResult.state.offset == 72


# Enumerations by the numbers of the headers, as nvmath-python's documentation lists them too.
NUMBERS = {
    "DESC_TRANSA": 3, "DESC_TRANSB": 4, "DESC_EPILOGUE": 7, "DESC_BIAS_POINTER": 8, "DESC_FAST_ACCUM": 25,
    "EPILOGUE_DEFAULT": 1, "EPILOGUE_BIAS": 4, "LAYOUT_BATCH_COUNT": 5, "LAYOUT_STRIDED_BATCH_OFFSET": 6,
    "PREF_MAX_WORKSPACE_BYTES": 1, "PREF_REDUCTION_SCHEME_MASK": 3, "PREF_IMPL_MASK": 12, "PREF_MIN_ALIGNMENTS": (5, 6, 7, 8),
    "CONFIG_SPLITK_NUM": 2, "CONFIG_REDUCTION_SCHEME": 3, "CAP_NUMERICAL_IMPL_FLAGS": 15,
    "REDUCTION_NONE": 0, "REDUCTION_INPLACE": 1, "REDUCTION_COMPUTE_TYPE": 2, "REDUCTION_OUTPUT_TYPE": 4,
    "COMPUTE_32F": 68, "COMPUTE_32F_PEDANTIC": 69, "COMPUTE_64F_PEDANTIC": 71, "OP_N": 0, "OP_T": 1, "SUCCESS": 0,
    "DATA_TYPES": {"f32": 0, "f64": 1, "f16": 2, "bf16": 14},
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_the_documented_one(name):
    assert getattr(abi, name) == NUMBERS[name]


def test_only_products_in_tf32_may_cut_operands():
    """HMMA and FMA, sums in f32, inputs TF32 and f32."""
    assert abi.IMPLEMENTATIONS["tf32"] == 1 | 2 | 1 << 9 | 1 << 18 | 1 << 19
    assert abi.COMPUTE_TYPES["tf32"] == 77  # CUBLAS_COMPUTE_32F_FAST_TF32


def test_implementations_leave_out_tf32_emulation_and_accumulators_of_16_bits():
    """Bits 0 on: FMA, HMMA, IMMA, DMMA; 8 on: sums in f16, f32, f64, s32; 16 on: inputs f16, bf16, TF32, f32, f64, i8."""
    for dtype in ("f16", "bf16", "f32", "f64"):
        mask = abi.IMPLEMENTATIONS[dtype]
        assert not mask & (1 << 8 | 1 << 11 | 1 << 18 | 1 << 21 | 1 << 32 | 1 << 2)
        assert bool(mask & 1 << 1) == (dtype in ("f16", "bf16"))
        assert bool(mask & 1 << 9) == (dtype != "f64")
        assert bool(mask & 1 << 10) == (dtype == "f64")
    for dtype in ("f16", "bf16"):
        assert abi.IMPLEMENTATIONS[dtype] >> 16 == (1 | 8 if dtype == "f16" else 1 | 2 | 8)
    assert abi.IMPLEMENTATIONS["f32"] == 1 | 1 << 9 | 1 << 19
    assert abi.IMPLEMENTATIONS["f64"] == 1 | 1 << 3 | 1 << 10 | 1 << 20
