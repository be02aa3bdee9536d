"""Faults in one scale of all rows: whose maximum it is, which rows it has, which launch writes, and the bits of results."""

from tests.mutation.mutant import Mutant, cpu

KERNEL = "tests/families/quantize/test_tensor_scale.py"
ENGINE = "opfacade/backends/cuda/scaled_engine.py"
DEVICE = "kernels/reduction/scaled.cuh"
BINDING = "csrc/reduction/fold_scaled.cc.jinja"
_DEPENDENT = ".pdl({{ dependent | lower }}), p);"
_SCALE = f"scale.launch(device, Launch({{{{ scale_ctas }}}}, 512).shared(16 * 32).cluster({{{{ scale_ctas }}}}){_DEPENDENT}"
_RESULT = "(wide ? result_wide : dense ? result_dense : result_any).launch(device, launch, p);"

FAULTS = (
    cpu(
        "tensor scale: it is of the sum before the norm",
        "opfacade/plans/_norm_program.py",
        "with_most(program_of(static), _weighted(static, normed))",
        "with_most(program_of(static), _weighted(static, _summed(static)[1]))",
        f"{KERNEL} -k then_quantize",
    ),
    cpu(
        "tensor scale: it is of the normed elements before their weight",
        "opfacade/plans/_norm_program.py",
        "with_most(program_of(static), _weighted(static, normed))",
        "with_most(program_of(static), normed)",
        f"{KERNEL} -k then_quantize",
    ),
    cpu(
        "tensor scale: the first launch writes rows too, so that a residual is added twice",
        DEVICE,
        "static constexpr bool kFullOutputs = false;",
        "static constexpr bool kFullOutputs = true;",
        f"{KERNEL} -k residual",
    ),
    cpu(
        "tensor scale: a kernel counts rows that are not valid",
        DEVICE,
        "min(valid_rows(p), p.size[0])",
        "p.size[0]",
        f"{KERNEL} -k own_scale or valid_rows",
    ),
    cpu(
        "tensor scale: the reference counts rows that are not valid",
        "opfacade/plans/_fold_ragged.py",
        "rows = count if 0 <= count <= program.shape[0] else 0",
        "rows = program.shape[0]",
        "tests/families/norm/test_reference.py -k tensor",
    ),
    cpu(
        "tensor scale: a kernel counts the first head of rows alone",
        DEVICE,
        "* (p.rows / p.size[0]);",
        "* 1;",
        f"{KERNEL} -k groups",
    ),
    Mutant(
        "tensor scale: results are divided by the scale of the call before",
        BINDING,
        ((f"{_SCALE}\n  {_RESULT}", f"{_RESULT}\n  {_SCALE}"),),
        tests=f"{KERNEL} -k then_quantize",
    ),
    cpu(
        "tensor scale: maxima of heads lie over each other",
        BINDING,
        "step *= p.size[axis--]",
        "axis--",
        f"{KERNEL} -k groups",
    ),
    cpu(
        "tensor scale: lanes of a row follow the 8-bit result",
        ENGINE,
        "fold_config.config(_unquantised(program), target)",
        "fold_config.config(program, target)",
        f"{KERNEL} -k then_quantize",
    ),
    cpu(
        "tensor scale: functions are exact where those of the op without quant are not",
        ENGINE,
        "math_of(_unquantised(program))",
        "math_of(program)",
        f"{KERNEL} -k 16_bits",
    ),
    cpu(
        "tensor scale: a fold of rows takes it",
        ENGINE,
        'if quant is not None and quant.scale == "tensor":',
        "if False:",
        "tests/families/activation/test_quantised.py -k declines",
    ),
    cpu(
        "tensor scale: behind pairs, a value that all elements share reads the wrong input",
        "opfacade/backends/cuda/gated_fold.py",
        "(paired(nodes, _HALVES), at, types) for nodes",
        "(nodes, at, types) for nodes",
        f"{KERNEL} -k pairs",
    ),
    cpu(
        "tensor scale: no rows have one",
        "opfacade/plans/_quant.py",
        'if quant.scale == "tensor" and rows == 0:',
        "if False:",
        "tests/families/norm/test_reference.py -k contradict",
    ),
)
