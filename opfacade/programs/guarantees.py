"""The error model of a program, and the constants of the machine that runs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from opfacade.core.guarantee import EXACT, ErrorModel
from opfacade.programs.expression import Node, ordered
from opfacade.programs.operations import FUNCTIONS
from opfacade.programs.types import FLOATS
from opfacade.programs.ulps import ABSOLUTE, APPROXIMATE, functions_in, ulps_of

Math = Literal["device", "approx"]


def error_model(values: Iterable[Node], math: Math, family: str, sm_version: int) -> ErrorModel:
    """The error model of a kernel: exact if every result is exact; otherwise that of the least precise type, such as
    `map-f32`."""
    nodes = ordered(values)
    rough = [node for node in nodes if not node.exact]
    if not rough:
        return ErrorModel(id=EXACT)
    single = any(node.type == "f32" for node in rough) or not any(node.type in FLOATS for node in rough)
    constants = {f"ulp.{name}": ulps_of(name, "f32", sm_version) for name in functions_in(nodes, "f32")}
    if math == "approx":
        used = {node.op for node in rough if node.type == "f32"}
        constants |= {f"ulp.{name}": ulps for name, ulps in APPROXIMATE.items() if name in used} | {"least": 2.0**-126}
    constants |= {f"ulp64.{name}": ulps_of(name, "f64", sm_version) for name in functions_in(nodes, "f64")}
    constants |= {f"abs.{name}": ABSOLUTE[name][0] for name in functions_in(nodes, "f32") if name in ABSOLUTE}
    constants |= {f"abs64.{name}": ABSOLUTE[name][1] for name in functions_in(nodes, "f64") if name in ABSOLUTE}
    constants |= {"u": 2.0**-24} if single else {}
    return ErrorModel(id=f"{family}-f32" if single else f"{family}-f64", constants=tuple(sorted(constants.items())))


def in_f64(values: Iterable[Node], family: str) -> ErrorModel:
    """The error model of the reference, which computes inexact nodes in f64."""
    nodes = ordered(values)
    if all(node.exact for node in nodes):
        return ErrorModel(id=EXACT)
    used = sorted({node.op for node in nodes if node.op in FUNCTIONS})
    constants = {f"ulp.{name}": 2.0**-24 for name in used} | {f"ulp64.{name}": 8.0 for name in used} | {"u": 2.0**-50}
    constants |= {f"{word}.{name}": 2.0**-48 for word in ("abs", "abs64") for name in used if name in ABSOLUTE}
    return ErrorModel(id=f"{family}-f64", constants=tuple(sorted(constants.items())))
