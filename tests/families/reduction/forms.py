"""Folds that together use every feature: reducers, axes, levels, dtypes, and outputs per row, per group and per element."""

from opfacade.plans.reduction import FoldDescriptor, FoldOutput, Stage
from opfacade.programs.activations import silu
from opfacade.programs.expression import apply, coord, extent, read, scalar, stage, value
from opfacade.programs.fields import Input, Number
from opfacade.programs.stages import REDUCERS
from opfacade.programs.types import widened

X, W, R = value("x", "f32"), value("w", "f32"), value("r", "f32")


def rows(shape, fold, stages, outputs, inputs=None, **more):
    inputs = inputs or (Input(name="x", dtype="f32"),)
    return FoldDescriptor(shape=shape, fold=fold, inputs=inputs, stages=stages, outputs=outputs, **more)


def reducer(name, dtype="f32", shape=(5, 37), fold=(1,), result=None):
    """A fold that stores all results of one reducer over one input."""
    kind, kept = widened(dtype), tuple(axis for axis in range(len(shape)) if axis not in fold)
    x = value("x", kind)
    x = x > 0 if REDUCERS[name].types == ("bool",) and kind != "bool" else x
    made = Stage(reducer=name, value=x)
    outputs = tuple(
        FoldOutput(name=part, dtype=made.part(part), value=stage(0, made.part(part), part), over=kept)
        for part in REDUCERS[name].parts
    )
    return rows(shape, fold, (made,), outputs, (Input(name="x", dtype=dtype),))


def count(axis):
    return apply("f32", extent(axis))


def rms(shape, dtype="bf16", weight=None, residual=False, **more):
    x = X + R if residual else X
    y = x * apply("rsqrt", stage(0, "f32") / count(1) + scalar("eps")) * W
    inputs = (Input(name="x", dtype=dtype), *((Input(name="r", dtype=dtype),) if residual else ()))
    inputs += (Input(name="w", dtype=weight or dtype, over=(1,)),)
    outputs = (FoldOutput(name="y", dtype=dtype, value=y), *((FoldOutput(name="s", dtype=dtype, value=x),) if residual else ()))
    in_place = (("s", "r"),) if residual else ()
    return rows(shape, (1,), (Stage(reducer="sum", value=x * x),), outputs, inputs, scalars=(Number(name="eps", value=1e-6),),
                in_place=more.pop("in_place", in_place), **more)  # fmt: skip


def softmax(shape, dtype="f32", axis=-1):
    y = apply("exp", X - stage(0, "f32", "max")) / stage(0, "f32", "sum")
    return rows(shape, (axis % len(shape),), (Stage(reducer="expsum", value=X),), (FoldOutput(name="y", dtype=dtype, value=y),),
                (Input(name="x", dtype=dtype),))  # fmt: skip


def layer(shape, dtype="f32"):
    """A layer norm: its second stage is the variance of the deviations from the mean."""
    mean = stage(0, "f32") / count(1)
    y = (X - mean) * apply("rsqrt", stage(1, "f32") / count(1) + 1e-5)
    stages = (Stage(reducer="sum", value=X), Stage(reducer="sum", value=(X - mean) * (X - mean)))
    return rows(shape, (1,), stages, (FoldOutput(name="y", dtype=dtype, value=y),), (Input(name="x", dtype=dtype),))


def grouped(shape, out="f8_e4m3", over=(0, 1), gate=False):
    """A fold that normalises a row and divides each group of the row by its largest element."""
    y = X * apply("rsqrt", stage(0, "f32") + 1e-6)
    y = y * silu(R) if gate else y
    stages = (Stage(reducer="sum", value=X * X), Stage(reducer="max", value=abs(y), axes=(2,)))
    most = apply("maximum", stage(1, "f32"), 1e-10)
    outputs = (FoldOutput(name="q", dtype=out, value=y / most), FoldOutput(name="most", dtype="f32", value=most, over=over))
    inputs = (Input(name="x", dtype="bf16"), *((Input(name="r", dtype="f16", over=(0, 2)),) if gate else ()))
    return rows(shape, (1, 2), stages, outputs, inputs)


def quantised(shape):
    """A quantisation that is exact: the maximum, the division and the conversion to 8 bits."""
    most = apply("maximum", stage(0, "f32"), 1e-10) / 448.0
    outputs = (
        FoldOutput(name="q", dtype="f8_e4m3", value=X / most),
        FoldOutput(name="s", dtype="f32", value=most, over=(0, 1)),
    )
    return rows(shape, (2,), (Stage(reducer="max", value=abs(X)),), outputs, (Input(name="x", dtype="bf16"),))


def shared_quotient(shape):
    """A fold that stores one quotient as f8 and as f32. The quotients have many magnitudes; no divisor is close to 1."""
    quotient = X / stage(0, "f32")
    outputs = (FoldOutput(name="q", dtype="f8_e4m3", value=quotient), FoldOutput(name="y", dtype="f32", value=quotient))
    return rows(shape, (1,), (Stage(reducer="max", value=X * 1e-36),), outputs, (Input(name="x", dtype="bf16"),))


def masked(shape):
    """A fold over the elements on and below the diagonal, each multiplied by an input of its row."""
    first = read("b", "f32", (coord(0),))
    term = apply("select", coord(1) <= coord(0), X * first, 0.0)
    inputs = (Input(name="x", dtype="f32"), Input(name="b", dtype="f32", shape=(shape[0],)))
    return rows(shape, (1,), (Stage(reducer="sum", value=term),),
                (FoldOutput(name="y", dtype="f32", value=term / (1.0 + abs(stage(0, "f32")))),), inputs)  # fmt: skip


def two_levels(shape):
    """A fold of two levels: sums of groups, then the maximum over a row of products with these sums."""
    stages = (Stage(reducer="sum", value=X, axes=(2,)), Stage(reducer="max", value=X * stage(0, "f32")))
    return rows(shape, (1, 2), stages, (FoldOutput(name="y", dtype="f32", value=X + stage(1, "f32")),))


FORMS = {
    **{f"{name}_f32": reducer(name) for name in REDUCERS},
    "sum_i8": reducer("sum", "i8", (3, 300)),
    "prod_u64": reducer("prod", "u64", (3, 9)),
    "argmin_u64": reducer("argmin", "u64", (4, 40)),
    "max_bf16": reducer("max", "bf16", (6, 130)),
    "sum_f64": reducer("sum", "f64", (3, 70)),
    "welford_f64": reducer("welford", "f64", (2, 50)),
    "any_bool": reducer("any", "bool", (9, 33)),
    "first": reducer("sum", "f32", (20, 6), (0,)),
    "all": reducer("sum", "f16", (7, 30), (0, 1)),
    "outer_and_inner": reducer("expsum", "f32", (5, 4, 11), (0, 2)),
    "tiny": reducer("sum", "bf16", (70, 3)),
    "one": reducer("max", "f32", (5, 1)),
    "empty": reducer("sum", "f32", (5, 0)),
    "none": reducer("sum", "f32", (0, 5)),
    "rms": rms((4, 520)),
    "rms_long": rms((2, 4100), "f16", "f32"),
    "add_rms": rms((3, 1040), residual=True),
    "add_rms_f32": rms((3, 333), "f32", residual=True, num_valid=True),
    "in_place": rms((5, 63), "f32", in_place=(("y", "x"),)),
    "softmax": softmax((7, 257)),
    "softmax_bf16": softmax((3, 2048), "bf16"),
    "softmax_columns": softmax((9, 20), "bf16", 0),
    "layer": layer((4, 200)),
    "layer_bf16": layer((2, 1500), "bf16"),
    "grouped": grouped((3, 9, 128)),
    "grouped_odd": grouped((3, 5, 20), over=(1, 0), gate=True),
    "quantised": quantised((5, 3, 128)),
    "shared_quotient": shared_quotient((5, 64)),
    "masked": masked((9, 21)),
    "two_levels": two_levels((3, 4, 9)),
}
