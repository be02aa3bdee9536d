"""Faults planted in gated activations: in their programs and their binding."""

from tests.mutation.mutant import Mutant

_BINDING, _PROGRAM = "csrc/activation/gated_activation.cc.jinja", "opfacade/plans/_gated.py"
_REFERENCE, _KERNEL = "tests/families/activation/test_reference.py", "tests/families/activation/test_activation_kernel.py"

_QUANTISED = "tests/families/activation/test_quantised.py"

FAULTS = (
    Mutant(
        "activation: in a fold, the second part of a row begins an element early",
        "csrc/reduction/_tensors.cc.jinja",
        (
            (
                "{{ k * sizes[k] }} * (tensors[{{ k }}].size(1) / {{ row_parts }})",
                "{{ k * sizes[k] }} * (tensors[{{ k }}].size(1) / {{ row_parts }} - 1)",
            ),
        ),
        tests=_QUANTISED,
    ),
    Mutant(
        "activation: in a fold, rows of pairs are twice as far apart",
        "csrc/reduction/_tensors.cc.jinja",
        (('{{ " / 2" if pairs is defined and k == 0 and dim == 0 }}', ""),),
        tests=_QUANTISED,
    ),
    Mutant(
        "activation: in a fold, gates and ups that alternate are exchanged",
        "opfacade/backends/cuda/gated_fold.py",
        (('0: (0, "first"), 1: (0, "second")', '0: (0, "second"), 1: (0, "first")'),),
        tests=_QUANTISED,
    ),
    Mutant(
        "activation: the result is rounded before it is quantised",
        "opfacade/plans/_gated_fold.py",
        (
            ("import Node, stage, value\n", "import Node, apply, stage, value\n"),
            ("quant.quotient(result, scale)", 'quant.quotient(apply(f"round_{gated.dtype}", result), scale)'),
        ),
        tests=_QUANTISED,
    ),
    Mutant(
        "activation: the scale is that of gates alone",
        "opfacade/plans/_gated_fold.py",
        (("value=abs(result)", 'value=abs(value("gate", "f32"))'),),
        tests=_QUANTISED,
    ),
    Mutant(
        "activation: the up of a row begins an element late",
        _BINDING,
        (("k * width * x.stride(1) *", "(k * width + (k > 0)) * x.stride(1) *"),),
        tests=_KERNEL,
    ),
    Mutant(
        "activation: the halves of a row whose elements are apart are looked for as if they were dense",
        _BINDING,
        (("k * width * x.stride(1) *", "k * width *"),),
        tests=_KERNEL,
    ),
    Mutant(
        "activation: rows of pairs are twice as far apart",
        _BINDING,
        (('{{ " / 2" if pairs }}', ""),),
        tests=_KERNEL,
    ),
    Mutant(
        "activation: gates and ups that alternate are exchanged",
        "opfacade/backends/cuda/activation.py",
        (('{0: (0, "first"), 1: (0, "second"), 2: (1,)}', '{0: (0, "second"), 1: (0, "first"), 2: (1,)}'),),
        tests=_KERNEL,
    ),
    Mutant(
        "activation: the limit holds for up on one side alone",
        _PROGRAM,
        (('apply("maximum", above, -limit) if both else above', "above"),),
        tests=_REFERENCE,
    ),
    Mutant(
        "activation: the limit loses NaN",
        _PROGRAM,
        (('apply("minimum", x, limit)', 'apply("fmin", x, limit)'),),
        tests=_REFERENCE,
    ),
    Mutant(
        "activation: swiglu multiplies by up alone",
        _PROGRAM,
        (('up + 1.0 if activation == "swiglu_oai" else up', "up"),),
        tests=_REFERENCE,
    ),
    Mutant(
        "activation: the gate of -inf is none of the limit",
        _PROGRAM,
        (('apply("maximum", gate, scalar("least")) *', "gate *"),),
        tests=_REFERENCE,
    ),
)
