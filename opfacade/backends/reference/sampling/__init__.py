"""Sampling in torch."""

from opfacade.backends.reference.declared import reference
from opfacade.backends.reference.sampling.sample import sample
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.plans.sampling import SampleDescriptor

# Adjusted logits are rounded to f32 by the contract; a soft cap has the error of tanh in f32.
_GUARANTEE = PrecisionGuarantee(
    math_precision="f64",
    accumulator="i64",
    error_model=ErrorModel(
        id="race-f32", constants=(("exp2", 2.0**-50), ("key", 2.0**-40), ("roundoff", 2.0**-52), ("tanh", 2.0**-21))
    ),
)

CANDIDATES = (reference(SampleDescriptor, _GUARANTEE, lambda d: (("logits", d.dtype),), sample),)
