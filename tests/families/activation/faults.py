"""Faults planted in the programs of gated activations and in the binding of their kernel."""

from tests.mutation.mutant import Mutant

_BINDING = "csrc/activation/gated_activation.cc.jinja"
_KERNEL = "tests/families/activation/test_activation_kernel.py"

_QUANTISED = "tests/families/activation/test_quantised.py"

FAULTS = (
    Mutant(
        "activation: the result is rounded before it is quantised",
        "opfacade/plans/_gated/fold.py",
        (
            ("import Node, stage, value\n", "import Node, apply, stage, value\n"),
            ("quant.quotient(result, scale)", 'quant.quotient(apply(f"round_{gated.dtype}", result), scale)'),
        ),
        tests=_QUANTISED,
    ),
    Mutant(
        "activation: the scale is that of gates alone",
        "opfacade/plans/_gated/fold.py",
        (("value=abs(result)", 'value=abs(value("gate", "f32"))'),),
        tests=_QUANTISED,
    ),
    Mutant(
        "activation: the up of a row begins an element late",
        _BINDING,
        (("k * width * x.stride(1) *", "(k * width + (k > 0)) * x.stride(1) *"),),
        tests=_KERNEL,
    ),
)
