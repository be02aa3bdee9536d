"""Programs for the fold kernel with two launches: the first launch folds groups, the second folds rows of group results."""

from opfacade.plans.reduction import FoldOutput, Stage
from opfacade.programs.expression import apply, coord, extent, read, scalar, stage, value
from opfacade.programs.fields import Input, Number
from tests.families.reduction.forms import FORMS, R, W, X, count, rows


def out(node, dtype="f32", over=(), name="y"):
    return FoldOutput(name=name, dtype=dtype, value=node, over=over)


def mean_of_entropies(shape, axis, dtype="bf16", kept=(), out_dtype="f32", **more):
    """The weighted mean over rows of log(sum(exp))."""
    every = range(len(shape))
    fold, rest = tuple(i for i in every if i not in kept), tuple(i for i in every if i != axis)
    others = tuple(i for i in rest if i not in kept)
    loss = (apply("log", stage(0, "f32", "sum")) + stage(0, "f32", "max")) * W * scalar("scale")
    stages = (
        Stage(reducer="expsum", value=X, axes=(axis,)),
        Stage(reducer="sum", value=loss, axes=others),
        Stage(reducer="sum", value=W, axes=others),
    )
    inputs = (Input(name="x", dtype=dtype), Input(name="w", dtype="f32", over=rest))
    numbers = (Number(name="scale", value=0.75),)
    made = out(stage(1, "f32") / stage(2, "f32"), out_dtype, kept)
    return rows(shape, fold, stages, (made,), inputs, scalars=numbers, **more)


def largest_sum(shape, axis, others, reducer="max"):
    """A matrix norm: the largest sum of a row, or of a column."""
    fold = tuple(sorted((axis, *others)))
    kept = tuple(i for i in range(len(shape)) if i not in fold)
    stages = (Stage(reducer="sum", value=abs(X), axes=(axis,)), Stage(reducer=reducer, value=stage(0, "f32"), axes=others))
    return rows(shape, fold, stages, (out(stage(1, "f32"), over=kept),))


def counted(shape):
    """An exact program: the number of rows whose sum is above 3, and the index of the first largest sum."""
    x, total = value("x", "i32"), stage(0, "i32")
    stages = (
        Stage(reducer="sum", value=x, axes=(1,)),
        Stage(reducer="sum", value=apply("i64", total > 3), axes=(0,)),
        Stage(reducer="argmax", value=total, axes=(0,)),
    )
    outputs = (out(stage(1, "i64"), "i64"), out(stage(2, "i64", "index"), "i64", name="z"))
    return rows(shape, (0, 1), stages, outputs, (Input(name="x", dtype="i32"),))


def many_results(shape):
    """A program with four group results of different types, read by three stages, and with positions and extents of both
    levels."""
    last, place = coord(1), coord(0)
    total, least = stage(0, "f32"), stage(1, "f64")
    first = read("b", "f32", (coord(0),))
    stages = (
        Stage(reducer="sum", value=X * apply("f32", last), axes=(1,)),
        Stage(reducer="min", value=apply("f64", X), axes=(1,)),
        Stage(reducer="any", value=X > 2, axes=(1,)),
        Stage(reducer="argmax", value=X, axes=(1,)),
        Stage(reducer="sum", value=total / count(1) * apply("f32", place) + first, axes=(0,)),
        Stage(reducer="prod", value=least / apply("f64", extent(0)) + 1.0, axes=(0,)),
        Stage(reducer="sum", value=apply("select", stage(2, "bool"), stage(3, "i64", "index"), extent(1)), axes=(0,)),
    )
    outputs = (out(stage(4, "f32") / count(1)), out(stage(5, "f64"), "f64", name="p"), out(stage(6, "i64"), "i64", name="z"))
    return rows(shape, (0, 1), stages, outputs, (Input(name="x", dtype="f32"), Input(name="b", dtype="f32", shape=(shape[0],))))


def elements_of_two_levels(shape):
    """A program whose rows combine elements with the sums of groups, and whose element outputs use the results."""
    stages = (
        Stage(reducer="sum", value=X * R, axes=(2,)),
        Stage(reducer="max", value=abs(X + stage(0, "f32"))),
        Stage(reducer="sum", value=X / stage(1, "f32"), axes=(2,)),
    )
    outputs = (
        out(X * stage(0, "f32") / stage(1, "f32"), "bf16", None),
        out(stage(2, "f32") + stage(0, "f32"), over=(0, 1), name="s"),
    )
    return rows(shape, (1, 2), stages, outputs, (Input(name="x", dtype="f32"), Input(name="r", dtype="f16", over=(2,))))


def parts_of_the_second_fold(shape):
    """A program with three levels: groups, rows of group results, and rows over some of the remaining axes."""
    stages = (
        Stage(reducer="sum", value=X, axes=(3,)),
        Stage(reducer="max", value=abs(stage(0, "f32")), axes=(1, 2)),
        Stage(reducer="argmin", value=stage(0, "f32"), axes=(2,)),
        Stage(reducer="sum", value=stage(0, "f32") / stage(1, "f32"), axes=(2,)),
    )
    outputs = (out(stage(2, "i64", "index"), "i64", (0, 1), "place"), out(stage(3, "f32"), over=(0, 1)))
    return rows(shape, (1, 2, 3), stages, outputs)


def largest_of_rows_and_columns(shape):
    """A program whose second fold would have two kinds of groups."""
    total = stage(0, "f32")
    stages = (Stage(reducer="sum", value=X, axes=(3,)), *(Stage(reducer="max", value=total, axes=(i,)) for i in (1, 2)))
    return rows(shape, (1, 2, 3), stages, (out(stage(1, "f32") + stage(2, "f32"), over=(0, 1, 2)),))


LEVELS = {
    "two_levels": FORMS["two_levels"],
    "entropies": mean_of_entropies((37, 70), 1),
    "entropies_f16": mean_of_entropies((5, 9, 33), 2, "f16", out_dtype="f16"),
    "entropies_kept": mean_of_entropies((3, 7, 40), 2, "f32", kept=(0,), num_valid=True),
    "entropies_columns": mean_of_entropies((6, 5, 3, 8), 1),
    "entropies_first": mean_of_entropies((19, 6), 0, "f32"),
    "many_rows": mean_of_entropies((2100, 5), 1),
    "norm_of_rows": largest_sum((9, 41), 1, (0,)),
    "norm_of_columns": largest_sum((41, 9), 0, (1,), "min"),
    "norms": largest_sum((4, 6, 17), 2, (1,)),
    "norms_of_columns": largest_sum((4, 17, 6), 1, (2,)),
    "counted": counted((70, 9)),
    "many_results": many_results((11, 23)),
    "elements": elements_of_two_levels((3, 5, 16)),
    "parts": parts_of_the_second_fold((2, 3, 5, 12)),
    "no_rows": mean_of_entropies((0, 5), 1),
    "none_in_a_row": largest_sum((3, 0), 1, (0,)),
}
