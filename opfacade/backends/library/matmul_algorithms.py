"""Algorithms of cuBLASLt that `tune` stores for a problem, as bytes, in the cache directory.

The heuristics may later return another algorithm, but the bytes of an algorithm mean the same kernel for the same library
version and kind of GPU. An algorithm is used only for the sizes for which it was stored.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade import env
from opfacade.backends.library import cublaslt_library as cublaslt
from opfacade.backends.library.cublaslt_product import Facts, Matrix, Product
from opfacade.base import regular_files, strict_json
from opfacade.core.descriptor import operands_of
from opfacade.core.target import Target
from opfacade.select import hardware_stamp

if TYPE_CHECKING:
    import torch

    from opfacade.plans.matmul import MatmulDescriptor

KEPT = 4  # maximum algorithms per problem
ALIGNED = 16  # alignment of each operand's address, in bytes
_ALGO = 64  # bytes
_MOST = 1 << 16  # maximum bytes of a file


class Kept(NamedTuple):
    """An algorithm, and the size of its workspace in bytes."""

    algo: bytes
    workspace: int

    @property
    def name(self) -> str:
        """A digest of the algorithm's bytes."""
        return f"sha256-{hashlib.sha256(self.algo).hexdigest()[:16]}"


def facts_of(problem: MatmulDescriptor, workspace: int) -> Facts:
    """The facts of a product with contiguous operands."""
    matrices = {name: _whole(tuple(dim.size or 0 for dim in spec.shape)) for name, spec in operands_of(problem).items()}
    d = matrices["out"]
    transposed = problem.weight_layout == "nk", problem.x_layout == "km"
    relu, bias = problem.activation == "relu", ALIGNED if problem.bias else 0
    operands = matrices["weight"], matrices["x"], d, d
    tf32 = problem.fp32_precision == "tf32"
    return Facts(problem.dtype, problem.result, transposed, problem.batch, *operands, bias, workspace, relu, tf32)


def _whole(shape: tuple[int, ...]) -> Matrix:
    if len(shape) < 2:
        return Matrix(1, 1, 1, 0, ALIGNED)
    columns, rows = shape[-2:]
    return Matrix(rows, columns, max(1, rows), rows * columns if len(shape) > 2 else 0, ALIGNED)


def learn(problem: MatmulDescriptor, target: Target, workspace: int, device: torch.device) -> None:
    """Stores the library's algorithms for contiguous operands that keep the bound. For a bias and 16-bit results none is
    stored, because on an H200 an algorithm after the first rounded the sum before it added the bias."""
    version = cublaslt.installed()
    rounds_twice = problem.bias and problem.result in ("f16", "bf16")
    if version is None or rounds_twice or problem.total_num_rows * problem.n == 0:
        return
    library = cublaslt.load(version)
    product = Product(library, library.handle(device), facts_of(problem, workspace))
    found = [{"algo": bytes(one.algo).hex(), "workspace": one.workspace} for one in product.allowed()[:KEPT]]
    path = _path(problem, target, version)
    path.parent.mkdir(parents=True, exist_ok=True)
    regular_files.replace(path, json.dumps(found))
    kept.cache_clear()


@lru_cache(maxsize=1024)
def kept(problem: MatmulDescriptor, target: Target) -> tuple[Kept, ...]:
    """The stored algorithms of a problem; none if nothing is stored or the file is invalid."""
    version = cublaslt.installed()
    if version is None:
        return ()
    try:
        found = strict_json.loads(regular_files.read(_path(problem, target, version), _MOST))
        return tuple(_checked(one) for one in found[:KEPT])
    except (OSError, ValueError, TypeError, KeyError):
        return ()


def _checked(one: dict[str, Any]) -> Kept:
    algo, workspace = bytes.fromhex(one["algo"]), one["workspace"]
    if len(algo) != _ALGO or type(workspace) is not int or workspace < 0:
        raise ValueError("no algorithm")
    return Kept(algo, workspace)


def _path(problem: MatmulDescriptor, target: Target, version: str) -> Path:
    plain = problem.model_copy(update={"alpha": 1.0, "beta": 1.0})  # the algorithms do not depend on alpha and beta
    words = (plain.digest(), hardware_stamp.hardware(target), version)
    return env.cache_dir() / "cublaslt" / f"{hashlib.sha256(repr(words).encode()).hexdigest()[:32]}.json"
