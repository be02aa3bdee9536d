"""Sampling in torch."""

from opfacade.backends.reference.declared import reference
from opfacade.backends.reference.sampling.probabilities import adjust, probabilities
from opfacade.backends.reference.sampling.sample import sample
from opfacade.backends.reference.sampling.top_k import top_k
from opfacade.backends.reference.sampling.verify import verify
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.plans.sampling import (
    AdjustLogitsDescriptor,
    ProbabilitiesDescriptor,
    SampleDescriptor,
    TopKDescriptor,
    VerifyDraftsDescriptor,
)

# By specification, adjusted logits are rounded to f32; a soft cap has the error of tanh in f32.
_GUARANTEE = PrecisionGuarantee(
    math_precision="f64",
    accumulator="i64",
    error_model=ErrorModel(
        id="race-f32", constants=(("exp2", 2.0**-50), ("key", 2.0**-40), ("roundoff", 2.0**-52), ("tanh", 2.0**-21))
    ),
)

_CAPPED = PrecisionGuarantee(
    math_precision="f32", accumulator="none", error_model=ErrorModel(id="capped-f32", constants=(("tanh", 2.0**-21),))
)

CANDIDATES = (
    reference(AdjustLogitsDescriptor, lambda d: _CAPPED if d.soft_cap else EXACT, lambda d: (("logits", d.dtype),), adjust),
    reference(ProbabilitiesDescriptor, _GUARANTEE, lambda d: (("x", d.dtype),), probabilities, lambda d: (("form", d.form),)),
    reference(SampleDescriptor, _GUARANTEE, lambda d: (("logits", d.dtype),), sample),
    reference(TopKDescriptor, EXACT, lambda d: (("x", d.dtype),), top_k),
    reference(
        VerifyDraftsDescriptor, lambda d: _GUARANTEE if d.races else EXACT, lambda d: (), verify, lambda d: (("kind", d.kind),)
    ),
)
