"""The constants of a product's template, and the facts in its SKU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opfacade.backends.cuda.declared import Fact
from opfacade.backends.cuda.matmul.decoding import way_of
from opfacade.backends.cuda.matmul.segments import Segments
from opfacade.backends.cuda.matmul.tiles import Tile, stages_of
from opfacade.backends.cuda.programs import source
from opfacade.core.dtypes import ITEMSIZE
from opfacade.plans._matmul.scaling import Scaling
from opfacade.plans._weights.weight import Weight
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor
from opfacade.programs.expression import ordered
from opfacade.programs.guarantees import Math

Product = MatmulDescriptor | GroupedMatmulDescriptor
_FEW = 4  # maximum instructions of a short program
_STEPS = 4  # wgmma k-steps per part of 128 8-bit elements
STEP = 32  # 8-bit elements per k-step
_X_AXES = {"tensor": "kOne", "token": "kRows"}
_PART_AXES = {"row": "kRowsParts", "column": "kPartsRows", "column_padded4": "kPartsRows"}
_ZEROS = {"none": "kNone", "int": "kSubtracted", "float": "kSubtracted", "added": "kAdded"}
_WEIGHT_AXES = {"tensor": "kRanges", "token": "kRows", "block": "kRowsParts"}


def math_of(problem: Product) -> Math:
    return source.math_of([(problem.result, value) for value in problem.program().values()])


def facts(problem: Product) -> Mapping[str, Fact]:
    """Fields that determine the code of a product, besides its dtypes."""
    flags = ("accumulate", "add", "bias", "gated", "num_valid", "gather", "zero_tail")
    found: dict[str, Fact] = {name: True for name in flags if getattr(problem, name, False)}
    found |= {"layout": problem.layout} if isinstance(problem, GroupedMatmulDescriptor) else {}
    found |= {"activation": problem.activation} if problem.activation != "none" else {}
    layouts = (("weight_layout", "nk"), ("x_layout", "mk"))
    found |= {name: getattr(problem, name) for name, plain in layouts if getattr(problem, name) != plain}
    found |= _facts_of_codes(codes_of(problem))
    return found | (_facts_of_scales(problem.scaling) if problem.scaling is not None else {})


def codes_of(problem: Product) -> Weight | None:
    """The format of the weight; None: the type of x."""
    return problem.weight_format


def part_of(weight: Weight) -> int:
    """The largest number of elements of k, at most 128, such that a range that starts at a multiple of it is always in one
    group."""
    if weight.group is None:
        return 128
    return weight.group if weight.group_offset % weight.group == 0 else STEP


def _facts_of_codes(weight: Weight | None) -> dict[str, Fact]:
    if weight is None:
        return {}
    found: dict[str, Fact] = {"codes": weight.dtype, "group": weight.group or ("k" if weight.num_groups is None else "order")}
    found |= {"dequantise": weight.dequantise} if weight.dequantise != "rounded" else {}
    found |= {"global_scale": True} if weight.global_scale else {}
    return found | ({"zero": weight.zero} if weight.zero != "none" else {})


def _facts_of_scales(scaling: Scaling) -> dict[str, Fact]:
    found: dict[str, Fact] = {"scale": scaling.kind}
    found |= {"weight_scale": scaling.of_weight} if scaling.of_weight != scaling.kind else {}
    found |= {"ranges": 1 + len(scaling.weight_starts)} if scaling.weight_starts else {}
    found |= {"x_zero": True} if scaling.x_zero else {}
    found |= {"x_scale_layout": "column"} if scaling.x_scale_layout != "row" else {}
    found |= {"cut": _cut(scaling)} if _cut(scaling) < _STEPS else {}
    return found | ({"offset_columns": True} if scaling.block_offset[0] else {})


def _cut(scaling: Scaling) -> int:
    """The k-steps of a part of x in the first of the two weight blocks that it overlaps."""
    return (scaling.part - scaling.block_offset[1]) // STEP if scaling.in_k else _STEPS


def dtypes(problem: Product) -> tuple[tuple[str, str], ...]:
    found = {"out": problem.result, "x": problem.dtype}
    if problem.bias:
        found["bias"] = problem.bias_dtype or problem.result
    if problem.scaling is not None:
        found |= {"x_scale": problem.scaling.x_scale_dtype, "weight_scale": problem.scaling.weight_scale_dtype}
    codes = codes_of(problem)
    if codes is not None:
        found["weight_scale"] = codes.scale_dtype
    return tuple(sorted(found.items()))


def shape_of(tile: Tile, segments: Segments | None, repack: bool = False) -> dict[str, Fact]:
    """The facts of a tile in a SKU."""
    found: dict[str, Fact] = {"tile_rows": tile.rows, "tile_columns": tile.columns, "tile_panels": tile.panels}
    found |= {"cluster": tile.cluster} if tile.cluster > 1 else {}
    found |= {"swapped": True} if tile.swapped else {}
    found |= {"segment": segments.length} if segments is not None else {}
    found |= {"repack": True} if repack else {}
    found |= {"own": own} if (own := _own(tile, segments)) > 1 else {}
    return found | ({"split": tile.split} if tile.split > 1 else {})


def _own(tile: Tile, segments: Segments | None) -> int:
    """Segments per CTA of a cluster that shares a tile."""
    return 1 if segments is None or tile.split == 1 else -(-segments.many // tile.split)


def has_factors(problem: Product) -> bool:
    """Whether stages contain scales of rows; otherwise the threads that multiply read scales from global memory."""
    scaling = problem.scaling
    if scaling is None or not scaling.in_k or scaling.block_offset != (0, 0):
        return False
    return isinstance(problem, MatmulDescriptor) or (not problem.gather and problem.layout != "k")


def printed_shape(
    tile: Tile, segments: Segments | None, repack: bool = False, terms: int = 1, factors: bool = False
) -> dict[str, Fact]:
    shape: dict[str, Fact] = {"tile_rows": tile.rows, "tile_columns": tile.columns, "tile_panels": tile.panels}
    shape |= {"stages": stages_of(tile, terms, factors), "cluster": tile.cluster, "split": tile.split, "terms": terms}
    shape |= {"swapped": tile.swapped, "factors": factors, "own": _own(tile, segments)}
    return shape | {"segmented": segments is not None} | ({"repack": True} if repack else {})


def scalars(problem: Product, segments: Segments | None) -> tuple[Fact | float, ...]:
    """Arguments after the operands: the scalars of the program, the limit of SMs, the length of segments, and the columns at
    which scales of the weight change."""
    scaling = problem.scaling
    length = () if segments is None else (segments.length,)
    of_scales = () if scaling is None else (*scaling.block_offset[: scaling.in_k], *scaling.weight_starts)
    codes = codes_of(problem)
    of_scales = of_scales if codes is None else (codes.group_offset,)
    return (*source.numbers(problem), problem.sm_limit or 0, *length, *of_scales)


def printed(problem: Product, sums: bool = False) -> dict[str, Any]:
    """The program, and the types of its tensors. sums: as in way_of."""
    values = list(problem.program().values())
    names = tuple(dict.fromkeys(str(node.data) for node in ordered(values) if node.kind == "input"))
    numbers = [number.name for number in problem.scalars]
    math = math_of(problem)
    return {
        "inputs": names,
        "nodes": source.statements(values, names, numbers, math),
        "dtype": problem.dtype,
        "size": ITEMSIZE[problem.dtype],
        "out_dtype": problem.result,
        "out_size": ITEMSIZE[problem.result],
        "bias_dtype": problem.bias_dtype or problem.result,
        "numbers": len(numbers),
        "blocks": 8 if source.weight(values, math) <= _FEW else 4,
        "gated": problem.gated,
        "x_layout": problem.x_layout,
        "weight_layout": problem.weight_layout,
        **_printed_scales(problem.scaling),
        **_printed_codes(codes_of(problem), problem.dtype, sums),
        **_printed_rows(problem),
    }


def _printed_rows(problem: Product) -> dict[str, Any]:
    """Constants for the rows that are computed."""
    if isinstance(problem, MatmulDescriptor):
        return {"num_valid": True} if problem.num_valid else {}
    flags = {name: True for name in ("gather", "zero_tail") if getattr(problem, name)}
    return {"layout": problem.layout} | flags


def _printed_codes(weight: Weight | None, dtype: str, sums: bool) -> dict[str, Fact]:
    """Constants for decoding codes, including the types of scales and zero points."""
    if weight is None:
        return {"scaled_sums": False, "global_sums": False, "sums": False}
    found: dict[str, Fact] = {"codes": weight.dtype, "group": weight.group or 0, "zero": _ZEROS[weight.zero]}
    way = way_of(weight, dtype, sums)
    found |= {"scaled": way not in ("column", "sums"), "sums": way == "sums"}
    found |= {"global_scale": weight.global_scale, "ordered": weight.num_groups is not None}
    found |= {
        "scaled_sums": weight.scales_columns and way in ("column", "parts"),
        "global_sums": weight.global_scale and way != "rounded",
    }
    zero_dtype = "u8" if weight.zero in ("none", "int") else weight.scale_dtype
    return found | {"weight_scale_dtype": weight.scale_dtype, "zero_dtype": zero_dtype}


def _printed_scales(scaling: Scaling | None) -> dict[str, Any]:
    """Kinds, types and axes of scales."""
    if scaling is None:
        return {"scaling": "none", "ranges": 1, "x_zero": False}
    axes = _PART_AXES[scaling.x_scale_layout] if scaling.in_k else _X_AXES[scaling.kind]
    return {
        "scaling": scaling.kind,
        "weight_scale": scaling.of_weight,
        "ranges": 1 + len(scaling.weight_starts),
        "x_scale_dtype": scaling.x_scale_dtype,
        "weight_scale_dtype": scaling.weight_scale_dtype,
        "x_scale_axes": axes,
        "weight_scale_axes": _WEIGHT_AXES[scaling.of_weight],
        "x_zero": scaling.x_zero,
        "cut": _cut(scaling),
        "offset_columns": bool(scaling.block_offset[0]),
    }
