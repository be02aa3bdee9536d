"""Rotation on CUDA: several heads of a row a warp, which share the row's angles."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.rotary import RotaryDescriptor

_PROMISE = PrecisionGuarantee(
    math_precision="f32_rounded_once",
    accumulator="none",
    deterministic=True,
    bit_stable_on_same_hardware=True,
    batch_invariant="composition",
    error_model=ErrorModel(id=EXACT),
    evidence=(
        "tests/families/rotary/test_rotary_kernel.py::test_it_has_the_bits_of_the_reference",
        "tests/families/rotary/test_rotary_kernel.py::test_strides_and_batches_do_not_matter",
    ),
)


def _facts(descriptor: RotaryDescriptor) -> dict[str, bool | int | str]:
    facts: dict[str, bool | int | str] = {"head_dim": descriptor.head_dim, "rotary_dim": descriptor.rotary_dim}
    facts |= {"pairs": "interleaved" if descriptor.interleaved else "half", "k": descriptor.num_kv_heads > 0}
    facts |= {"rotary_offset": descriptor.rotary_offset} if descriptor.rotary_offset else {}
    if descriptor.sections is not None:
        facts["sections"] = "_".join([descriptor.section_order, *map(str, descriptor.sections)])
    return facts | {name: True for name in ("inverse", "in_place", "num_valid") if getattr(descriptor, name)}


def section_constants(descriptor: Any) -> dict[str, Any]:
    """Constants of csrc/rotary/_sections.cu.jinja."""
    sections = descriptor.sections or ()
    stops = tuple(accumulate(sections))[:-1]
    return {"sections": sections, "section_order": descriptor.section_order, "stops": stops}


def _constants(descriptor: RotaryDescriptor) -> dict[str, Any]:
    names = (
        "head_dim",
        "rotary_dim",
        "rotary_offset",
        "interleaved",
        "inverse",
        "dtype",
        "table_dtype",
        "positions",
        "in_place",
    )
    found = {name: getattr(descriptor, name) for name in (*names, "num_valid")}
    return found | section_constants(descriptor) | {"has_k": descriptor.num_kv_heads > 0}


def _dtypes(descriptor: RotaryDescriptor) -> tuple[tuple[str, str], ...]:
    return (("positions", descriptor.positions), ("table", descriptor.table_dtype), ("x", descriptor.dtype))


class _Rotary(CudaKernel):
    """The template has lists, which a SKU does not."""

    def facts(self, descriptor: Any) -> support.SpecPairs:
        return support.pairs(**_facts(descriptor))

    def jit_spec(self, descriptor: Any, target: Target) -> Any:
        return support.spec_of("rotary/rotary", support.pairs(**_constants(descriptor)), target)


_ROTARY = _Rotary(
    descriptor=RotaryDescriptor,
    template="rotary/rotary",
    impl="warp_heads",
    constants=_facts,
    dtypes=_dtypes,
    guarantee=_PROMISE,
)

CANDIDATES = (_ROTARY.candidate,)
