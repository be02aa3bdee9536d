"""Maps that together use every feature, and calls of these maps in every memory layout."""

import torch

from opfacade.core.dtypes import torch_dtype
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.activations import silu
from opfacade.programs.expression import apply, coord, extent, read, scalar, value
from opfacade.programs.fields import Input, Number, Output
from opfacade.programs.types import storable, widened

X, Y = value("x", "f32"), value("y", "f32")


def unary(root, shape, dtype="f32", out=None, **more):
    """The map z = root, with the single input x."""
    made = Output(name="z", dtype=out or dtype, value=root)
    return MapDescriptor(shape=shape, inputs=(Input(name="x", dtype=dtype),), outputs=(made,), **more)


def binary(root, shape, dtypes=("f32", "f32"), over=(None, None), out="f32", **more):
    inputs = tuple(Input(name=name, dtype=dtype, over=axes) for name, dtype, axes in zip("xy", dtypes, over, strict=True))
    return MapDescriptor(shape=shape, inputs=inputs, outputs=(Output(name="z", dtype=out, value=root),), **more)


def cast(source, target, shape=(3, 37)):
    """The map that converts elements of the source dtype to the target dtype."""
    x, wanted = value("x", widened(source)), storable(target)
    return unary(x if x.type == wanted else apply(wanted, x), shape, source, target)


def padded(shape, inner, outside, dtype="f32"):
    """The map that places its input in the middle of a larger output."""
    places = tuple(coord(axis) - (size - small) // 2 for axis, (size, small) in enumerate(zip(shape, inner, strict=True)))
    made = Output(name="z", dtype=dtype, value=read("x", widened(dtype), places, outside))
    return MapDescriptor(shape=shape, inputs=(Input(name="x", dtype=dtype, shape=inner),), outputs=(made,))


def gathered(rows, width, entries, index="i32", dtype="bf16"):
    at = value("index", index)
    places = (at if index == "i64" else apply("i64", at), coord(1))
    made = Output(name="z", dtype=dtype, value=read("table", "f32", places, 0.0))
    inputs = (Input(name="index", dtype=index, over=(0,)), Input(name="table", dtype=dtype, shape=(entries, width)))
    return MapDescriptor(shape=(rows, width), inputs=inputs, outputs=(made,))


def many():
    """A map with eight inputs of eight dtypes, four outputs, scalars of three types, and rank 5."""
    kinds = ("f16", "bf16", "f32", "f64", "i8", "u16", "i64", "bool")
    axes = (None, (4,), (0, 2), (1, 3), None, (), (0, 1, 2, 3), (3, 4))
    inputs = tuple(Input(name=f"a{i}", dtype=kind, over=over) for i, (kind, over) in enumerate(zip(kinds, axes, strict=True)))
    a = [value(f"a{i}", widened(kind)) for i, kind in enumerate(kinds)]
    numbers = (
        Number(name="c", value=0.25),
        Number(name="k", value=-7, type="i64"),
        Number(name="flag", value=True, type="bool"),
    )
    inner = a[0] * a[1] + a[2] * scalar("c")
    whole = apply("i64", a[4]) * scalar("k", "i64") + a[6] + apply("i64", a[5])
    outputs = (
        Output(name="y0", dtype="bf16", value=apply("select", a[7], inner, apply("exp", -abs(inner)))),
        Output(name="y1", dtype="f64", value=a[3] * apply("f64", inner)),
        Output(name="y2", dtype="i64", value=whole),
        Output(name="y3", dtype="bool", value=apply("xor", a[7], scalar("flag", "bool")) & (whole > 3)),
    )
    return MapDescriptor(shape=(2, 3, 4, 2, 5), inputs=inputs, scalars=numbers, outputs=outputs)


FORMS = {
    "silu": unary(silu(X), (7, 130), "bf16"),
    "silu_f32": unary(silu(X), (1000,)),
    "sum": binary(X + Y, (5, 66), ("f16", "bf16"), out="f32"),
    "row_bias": binary(X * Y, (6, 33), over=(None, (1,))),
    "column_bias": binary(X * Y, (6, 33), over=(None, (0,))),
    "scalar": binary(X * Y, (4, 9), over=(None, ())),
    "outer": binary(X * Y, (20, 33), over=((0,), (1,))),
    "many": many(),
    "rolled": unary(apply("i32", apply("mod", coord(1) - 2, extent(1))) + value("x", "i32"), (3, 21), "i32"),
    "padded": padded((9, 12), (5, 6), 1.5),
    "mirrored": padded((9, 12), (5, 6), "reflect", "i8"),
    "gathered": gathered(11, 24, 5),
    "rank0": unary(X * 2.0, ()),
    "rank8": unary(X * 2.0, (2, 1, 3, 1, 2, 2, 1, 3), "f16"),
    "in_place": binary(X + Y, (9, 40), ("bf16", "f32"), out="bf16", in_place=(("z", "x"),)),
    "num_valid": binary(X + Y, (9, 40), ("f8_e4m3", "f32"), (None, (1,)), "f8_e5m2", num_valid=True),
    "in_place_valid": binary(X + Y, (9, 40), ("f16", "f16"), out="f16", in_place=(("z", "x"),), num_valid=True),
    "empty": unary(X * 2.0, (0, 5)),
    "constant": MapDescriptor(shape=(3, 5), outputs=(Output(name="z", dtype="i64", value=coord(0) * extent(1) + coord(1)),)),
}


def laid_out(tensor, how, seed=0):
    """The same values in another layout: "transposed" reverses the order of the axes in memory, "stepped" has gaps, and
    "shifted" begins one element later."""
    if how == "transposed":
        backwards = tuple(range(tensor.ndim))[::-1]
        return tensor.permute(backwards).contiguous().permute(backwards)
    if how == "stepped":
        wide = torch.empty([*(2 * n for n in tensor.shape), 3], dtype=tensor.dtype)
        view = wide[(*(slice(None, None, 2) for _ in tensor.shape), 1)]
        return view.copy_(tensor)
    if how == "shifted":
        flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
        return flat[1:].view(tensor.shape).copy_(tensor)
    return tensor


LAYOUTS = ("compact", "transposed", "stepped", "shifted")


def random_of(dtype, shape, seed):
    """Values of many magnitudes; integers are as large as 2^62."""
    draw = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=draw).bool()
    if dtype[0] in "iu":
        return torch.randint(-(2**62), 2**62, shape, generator=draw).to(torch_dtype(dtype))
    found = torch.randn(shape, generator=draw) * torch.exp(2 * torch.randn(shape, generator=draw))
    return found.to(torch_dtype(dtype))
