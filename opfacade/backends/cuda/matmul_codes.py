"""Products whose weight has codes of four bits: what the kernel of tiles takes. Threads decode the weight into its stages."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.backends.cuda import support
from opfacade.backends.cuda.matmul_kernel import HALVES, Shape
from opfacade.backends.cuda.matmul_tiles import Sizes, whole_tile_of
from opfacade.core.candidate import Reason
from opfacade.plans._weight import Weight
from opfacade.plans.matmul import MatmulDescriptor

_CHUNK = 32  # codes that a thread decodes with one scale
_ALLOWED: dict[str, tuple[str | int | None, ...]] = {
    "dtype": ("int4", "uint4"),
    "dequantise": ("rounded",),
    "num_groups": (None,),
    "group": (32, 64, 128, None),
    "scale_dtype": ("f32", "bf16", "f16"),
    "global_scale": (False,),
}


def shape_of(sizes: Sizes, sms: int) -> Shape:
    """Each CTA decodes what its tile needs, so that none shares a weight, and k is one chain."""
    return Shape(whole_tile_of(sizes, sms, True), None)


def lacks(problem: MatmulDescriptor, weight: Weight) -> Iterator[Reason]:
    yield from support.choice_reason("OPF-S002", "dtype", problem.dtype, HALVES)
    yield from support.choice_reason("OPF-S003", "x_layout", problem.x_layout, ("mk",))
    for field, choices in _ALLOWED.items():
        yield from support.choice_reason("OPF-S003", f"weight_format.{field}", getattr(weight, field), choices)
    inside = weight.group_offset % _CHUNK
    yield from support.choice_reason("OPF-S003", f"weight_format.group_offset % {_CHUNK}", inside, (0,))
