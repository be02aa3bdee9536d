"""Sampling in torch."""

from opfacade.backends.reference.declared import reference
from opfacade.backends.reference.sampling.sample import sample
from opfacade.backends.reference.sampling.top_k import top_k
from opfacade.backends.reference.sampling.verify import verify
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.plans.sampling import SampleDescriptor, TopKDescriptor, VerifyDraftsDescriptor

# Adjusted logits are rounded to f32 by the contract; a soft cap has the error of tanh in f32.
_GUARANTEE = PrecisionGuarantee(
    math_precision="f64",
    accumulator="i64",
    error_model=ErrorModel(
        id="race-f32", constants=(("exp2", 2.0**-50), ("key", 2.0**-40), ("roundoff", 2.0**-52), ("tanh", 2.0**-21))
    ),
)

CANDIDATES = (
    reference(SampleDescriptor, _GUARANTEE, lambda d: (("logits", d.dtype),), sample),
    reference(TopKDescriptor, EXACT, lambda d: (("x", d.dtype),), top_k),
    reference(
        VerifyDraftsDescriptor, lambda d: _GUARANTEE if d.races else EXACT, lambda d: (), verify, lambda d: (("kind", d.kind),)
    ),
)
