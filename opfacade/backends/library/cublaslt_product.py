"""One product by cuBLASLt: descriptions of the matrices, the algorithm, and the call.

cuBLASLt stores matrices in column-major order: our rows are its columns. So it computes out^T = weight * x^T without
transposing tensors.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING, NamedTuple

from opfacade.backends.library import cublaslt_abi as abi
from opfacade.backends.library.cublaslt_library import Library, failed

if TYPE_CHECKING:
    from torch import Tensor

_MOST_ALIGNED = 256  # bytes; no algorithm needs more
_RESULTS = 16  # maximum number of algorithms from the heuristics; the first that keeps the bound is used


class Matrix(NamedTuple):
    """One operand in column-major order. step: the stride of columns. far: the stride of matrices in a batch."""

    rows: int
    columns: int
    step: int
    far: int
    aligned: int

    @classmethod
    def of(cls, tensor: Tensor) -> Matrix:
        columns, rows = tensor.shape[-2:]
        step = tensor.stride(-2) if columns > 1 else max(1, rows)
        far = tensor.stride(0) if tensor.dim() > 2 else 0
        return cls(rows, columns, step, far, aligned(tensor))


def aligned(tensor: Tensor) -> int:
    """The alignment of a tensor's address in bytes, a power of two."""
    address = tensor.data_ptr()
    return min(address & -address, _MOST_ALIGNED) if address else _MOST_ALIGNED


class Facts(NamedTuple):
    """All facts that determine an algorithm. a, b, c, d: weight, x, the operand of beta, out. bias: its alignment; 0: no
    bias."""

    dtype: str
    out_dtype: str
    transposed: tuple[bool, bool]  # weight, x
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    bias: int
    workspace: int
    relu: bool = False
    tf32: bool = False

    @property
    def products(self) -> str:
        """The type in which elements are multiplied."""
        return "tf32" if self.tf32 else self.dtype


class Chosen(NamedTuple):
    """An algorithm, and its workspace in bytes."""

    algo: abi.Algo
    workspace: int


class Product:
    """The description of a product and its algorithm. Only one thread may use it at a time, because it contains the address of
    bias.

    stored: an algorithm to use; None: the first allowed algorithm of the library's heuristics.
    """

    def __init__(self, library: Library, handle: int, facts: Facts, stored: bytes | None = None) -> None:
        self._library, self._handle, self._facts = library, handle, facts
        self._owned: list[tuple[str, int]] = []
        self._finalizer = weakref.finalize(self, _destroy, library, self._owned, os.getpid())
        self._description = self._described()
        matrices = ((facts.a, facts.dtype), (facts.b, facts.dtype), (facts.c, facts.out_dtype), (facts.d, facts.out_dtype))
        self._layouts = tuple(self._layout(matrix, dtype) for matrix, dtype in matrices)
        self.chosen = self._of_heuristics() if stored is None else self._checked(stored)

    def _made(self, kind: str, *arguments: object) -> int:
        found = self._library.made(f"cublasLt{kind}Create", *arguments)
        self._owned.append((kind, found))
        return found

    def _described(self) -> int:
        facts = self._facts
        scale = abi.DATA_TYPES["f64" if facts.dtype == "f64" else "f32"]
        found = self._made("MatmulDesc", abi.COMPUTE_TYPES[facts.products], scale)
        for attribute, transposed in zip((abi.DESC_TRANSA, abi.DESC_TRANSB), facts.transposed, strict=True):
            self._library.set("MatmulDesc", found, attribute, ctypes.c_int32(abi.OP_T if transposed else abi.OP_N))
        epilogue = (abi.EPILOGUE_BIAS if facts.bias else 0) | (abi.EPILOGUE_RELU if facts.relu else 0) or abi.EPILOGUE_DEFAULT
        self._library.set("MatmulDesc", found, abi.DESC_EPILOGUE, ctypes.c_uint32(epilogue))
        self._library.set("MatmulDesc", found, abi.DESC_FAST_ACCUM, ctypes.c_int8(0))
        if facts.bias:  # the heuristics read only the alignment of the address
            self._library.set("MatmulDesc", found, abi.DESC_BIAS_POINTER, ctypes.c_void_p(facts.bias))
        return found

    def _layout(self, matrix: Matrix, dtype: str) -> int:
        found = self._made("MatrixLayout", abi.DATA_TYPES[dtype], matrix.rows, matrix.columns, matrix.step)
        if self._facts.batch > 1:
            self._library.set("MatrixLayout", found, abi.LAYOUT_BATCH_COUNT, ctypes.c_int32(self._facts.batch))
            self._library.set("MatrixLayout", found, abi.LAYOUT_STRIDED_BATCH_OFFSET, ctypes.c_int64(matrix.far))
        return found

    def _preference(self) -> int:
        found, facts = self._made("MatmulPreference"), self._facts
        numbers = {
            abi.PREF_MAX_WORKSPACE_BYTES: ctypes.c_uint64(facts.workspace),
            abi.PREF_REDUCTION_SCHEME_MASK: ctypes.c_uint32(abi.REDUCTION_COMPUTE_TYPE),
            abi.PREF_IMPL_MASK: ctypes.c_uint64(abi.IMPLEMENTATIONS[facts.products]),
        }
        for attribute, matrix in zip(abi.PREF_MIN_ALIGNMENTS, (facts.a, facts.b, facts.c, facts.d), strict=True):
            numbers[attribute] = ctypes.c_uint32(matrix.aligned)
        for attribute, number in numbers.items():
            self._library.set("MatmulPreference", found, attribute, number)
        return found

    def allowed(self) -> list[Chosen]:
        """The algorithms of the library's heuristics that keep the bound, the fastest by its own model first."""
        results, count = (abi.HeuristicResult * _RESULTS)(), ctypes.c_int()
        self._library.call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self._handle, self._description, *self._layouts, self._preference()),
            *(_RESULTS, results, ctypes.byref(count)),
        )
        return [Chosen(one.algo, one.workspace_size) for one in results[: count.value] if self._keeps(one)]

    def _of_heuristics(self) -> Chosen:
        found = self.allowed()
        if not found:
            raise failed("OPF-L003", f"no algorithm keeps the bound of {self._facts}")
        return found[0]

    def _checked(self, stored: bytes) -> Chosen:
        """A stored algorithm, if the library accepts it for this product."""
        algo, result = abi.Algo.from_buffer_copy(stored), abi.HeuristicResult()
        self._library.call(
            "cublasLtMatmulAlgoCheck",
            *(self._handle, self._description, *self._layouts, ctypes.byref(algo), ctypes.byref(result)),
        )
        result.algo = algo
        if not self._keeps(result):
            raise failed("OPF-L003", f"the stored algorithm does not keep the bound of {self._facts}")
        return Chosen(algo, result.workspace_size)

    def _keeps(self, result: abi.HeuristicResult) -> bool:
        """The preference excludes all other algorithms; this check does not rely on it."""
        if result.state != abi.SUCCESS or result.workspace_size > self._facts.workspace:
            return False
        scheme = self._library.asked("Config", result.algo, abi.CONFIG_REDUCTION_SCHEME, ctypes.c_uint32)
        if scheme not in (abi.REDUCTION_NONE, abi.REDUCTION_COMPUTE_TYPE):
            return False
        flags = self._library.asked("Cap", result.algo, abi.CAP_NUMERICAL_IMPL_FLAGS, ctypes.c_uint64)
        return not flags & ~abi.IMPLEMENTATIONS[self._facts.products]

    def run(self, call: Call) -> None:
        """Launch on a stream of the current device without allocating or waiting."""
        if self._facts.bias:
            self._library.set("MatmulDesc", self._description, abi.DESC_BIAS_POINTER, ctypes.c_void_p(call.bias))
        a, b, c, d = self._layouts
        self._library.call(
            "cublasLtMatmul",
            *(self._handle, self._description, ctypes.byref(call.alpha)),
            *(call.a, a, call.b, b, ctypes.byref(call.beta), call.c, c, call.d, d),
            *(ctypes.byref(self.chosen.algo), call.workspace, self.chosen.workspace, call.stream),
        )


class Call(NamedTuple):
    """The scalars and addresses of one call."""

    alpha: ctypes.c_float | ctypes.c_double
    beta: ctypes.c_float | ctypes.c_double
    a: int
    b: int
    c: int
    d: int
    bias: int
    workspace: int
    stream: int


def _destroy(library: Library, owned: list[tuple[str, int]], process: int) -> None:
    """Destroys the descriptors, but only in the process that created them: a forked child must not call a CUDA library."""
    if os.getpid() != process:
        return
    for kind, one in reversed(owned):
        getattr(library.functions, f"cublasLt{kind}Destroy")(one)
