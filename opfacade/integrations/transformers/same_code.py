"""Compares functions by their code, because transformers copies the code of a layer for each family of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn

Pair = tuple[Any, Any]


def same_method(one: type, other: type, name: str) -> bool:
    """Whether a method has the same code in two classes, including the methods of the class that it calls."""
    return _same((getattr(one, name, None), getattr(other, name, None)), (one, other), frozenset())


def same_code(one: object, other: object) -> bool:
    """Whether two functions have the same code, including the functions that they reference by globals or closures.

    Names of parameters, annotations and strings are ignored. A function that the package `kernels` has turned into a module is
    compared by its forward.
    """
    return _same((one, other), None, frozenset())


def _same(pair: Pair, owners: tuple[type, type] | None, seen: frozenset[tuple[int, int]]) -> bool:
    one, other = (type(x).forward if isinstance(x, nn.Module) else x for x in pair)
    if one is other or (id(one), id(other)) in seen:
        return True
    if not (isinstance(one, FunctionType) and isinstance(other, FunctionType)):
        return False
    if _facts(one.__code__) != _facts(other.__code__):
        return False
    return all(_same(found, owners, seen | {(id(one), id(other))}) for found in _reached(one, other, owners))


def _facts(code: CodeType) -> tuple[Any, ...]:
    consts = (_facts(one) if isinstance(one, CodeType) else one for one in code.co_consts if not isinstance(one, str))
    return code.co_code, code.co_names, len(code.co_freevars), tuple(consts)


def _reached(one: FunctionType, other: FunctionType, owners: tuple[type, type] | None) -> Iterator[Pair]:
    """Pairs of functions that both reference under the same name."""
    found: list[Pair] = list(zip(_inside(one), _inside(other), strict=True))
    for name in one.__code__.co_names:
        found.append((one.__globals__.get(name), other.__globals__.get(name)))
        if owners is not None:
            found.append((getattr(owners[0], name, None), getattr(owners[1], name, None)))
    for pair in found:
        if any(isinstance(x, (FunctionType, nn.Module)) for x in pair):
            yield pair


def _inside(function: FunctionType) -> tuple[Any, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__ or ())


def globals_of(function: object, part: str, seen: frozenset[int] = frozenset()) -> dict[str, Any]:
    """The functions with `part` in their name that a function, or a function in its closure, references as globals."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return {}
    scope = function.__globals__
    found = {name: scope[name] for name in function.__code__.co_names if part in name and name in scope}
    for inner in _inside(function):
        found |= globals_of(inner, part, seen | {id(function)})
    return found


def rebound(function: FunctionType, names: Mapping[str, Any]) -> FunctionType:
    """A copy of a function in which some globals have other values; functions in its closure that use them are copied too."""
    scope = function.__globals__
    if not names.keys().isdisjoint(function.__code__.co_names):
        # Dynamo reads globals in the module named __name__, where these values are not.
        scope = {name: value for name, value in scope.items() if name != "__name__"} | dict(names)
    cells = tuple(
        CellType(rebound(inner, names)) if any(globals_of(inner, name) for name in names) else cell
        for cell, inner in zip(function.__closure__ or (), _inside(function), strict=True)
    )
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
