"""CUDA adjustment of logits in place."""

from __future__ import annotations

from opfacade.backends.cuda.declared import CudaKernel
from opfacade.backends.cuda.sampling.sample import Facts, set_facts
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.sampling import AdjustLogitsDescriptor

_CAPPED = ErrorModel(id="capped-f32", constants=(("tanh", 2.0**-21),))


def _facts(descriptor: AdjustLogitsDescriptor) -> Facts:
    facts = set_facts(descriptor, ("temperature", "penalties", "bias", "bitmask", "num_valid"))
    return facts | ({"soft_cap": True} if descriptor.soft_cap else {})


def _guarantee(descriptor: AdjustLogitsDescriptor, target: Target) -> PrecisionGuarantee:
    return PrecisionGuarantee(
        math_precision="f32",
        accumulator="none",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=_CAPPED if descriptor.soft_cap else ErrorModel(id=EXACT),
        evidence=(
            "tests/families/sampling/test_adjust.py::test_a_row_has_its_bits_in_any_batch",
            "tests/families/sampling/test_adjust.py::test_runs_repeat_bitwise",
        ),
    )


ADJUST = CudaKernel(
    descriptor=AdjustLogitsDescriptor,
    template="sampling/adjust_logits",
    impl="in_place",
    constants=_facts,
    dtypes=lambda descriptor: (("logits", descriptor.dtype),),
    in_dtypes=("dtype",),
    guarantee=_guarantee,
    scalars=lambda descriptor: (descriptor.soft_cap,),
)
