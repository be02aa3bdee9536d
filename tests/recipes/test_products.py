"""Products of matrices as recipes, against torch's operators in f64 on the samples of torch's own tests; their refusals."""

from contextlib import suppress

import pytest
import torch

from opfacade import Plan, Preference, recipes
from opfacade.errors import DescriptorError
from opfacade.plans.matmul import GroupedMatmulArgs, MatmulArgs, Scaling
from opfacade.recipes import shaped
from opfacade.testing import numerics
from tests.recipes import opinfo

NAMES = ("mm", "bmm", "mv", "addmm", "baddbmm", "nn.functional.linear", "matmul", "__rmatmul__", "einsum")
U = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 2.0**-53}
ADDED = ("addmm", "baddbmm")


def ran(made, x, weight, shape, **more):
    """The result as torch shapes it, within the bound of its plan. Operands are views, expanded where torch expands them."""
    sizes = {name: [dim.size for dim in spec.shape] for name, spec in made.operands().items()}
    given = {"x": x, "weight": weight, **more}
    given = {name: one.reshape(sizes[name]) for name, one in given.items()}
    out = torch.full(sizes["out"], 77.0).to(
        getattr(torch, {"f32": "float32", "bf16": "bfloat16", "f64": "float64"}[made.result])
    )
    plan, args = Plan.select(made, Preference(backend="reference")), MatmulArgs(out=out, **given)
    before = numerics.snapshot(made, args)
    plan.run(args)
    assert numerics.check(made, args, plan.sku, before=before).worst <= 1
    return out.reshape(shape)


def ordered(equation, operands, made):
    """Both operands of einsum with the axes of the batch in front, and the layouts of the descriptor."""
    given, out = equation.replace(" ", "").split("->")
    labels = given.split(",")
    batch = [one for one in out if one in labels[0] and one in labels[1]]
    found = []
    for own, other, tensor, last in zip(
        labels, labels[::-1], operands, (made.x_layout == "mk", made.weight_layout == "nk"), strict=True
    ):
        alone = [one for one in own if one not in other]
        summed = [one for one in labels[0] if one in labels[1] and one not in out]
        order = [*batch, *(alone + summed if last else summed + alone)]
        found.append(tensor.permute([own.index(one) for one in order]))
    return found


def call(name, sample):
    """The recipe's descriptor, its factors and other operands."""
    recipe, tensors = recipes.RECIPES[recipes._recipe.attribute(name)], (sample.input, *sample.args)
    if name == "einsum":
        made = recipe(sample.args[0], *sample.input)
        return made, *ordered(sample.args[0], sample.input, made), {}
    made = recipe(*tensors, **sample.kwargs)
    if name in ADDED:
        shape = torch.broadcast_shapes((*tensors[1].shape[:-1], tensors[2].shape[-1]), tensors[0].shape)
        more = {"add": tensors[0].expand(shape).contiguous()} if made.add else {}
        return made, tensors[1], tensors[2], more
    if name == "nn.functional.linear":
        return made, tensors[0], tensors[1], {"bias": tensors[2]} if made.bias else {}
    x, weight = tensors[::-1] if name == "__rmatmul__" else tensors
    if made.batch > 1:
        batch = torch.broadcast_shapes(x.shape[:-2], weight.shape[:-2])
        x, weight = x.expand(*batch, *x.shape[-2:]), weight.expand(*batch, *weight.shape[-2:])
    return made, x, weight, {}


def far(name, info, sample, got, k):
    """The error of a result against torch's f64 result, relative to what its rounding and that of its sums allow."""

    def mapped(change):
        changed = [opinfo.mapped(change, one) for one in (sample.input, *sample.args)]
        return info.op(*changed, **{n: opinfo.mapped(change, one) for n, one in sample.kwargs.items()})

    want, most = mapped(torch.Tensor.double), mapped(lambda one: one.double().abs())
    assert got.shape == want.shape
    allowed = 1.01 * U[got.dtype] * want.abs() + (k + 4) * 2.0**-24 * most + 1e-30
    return ((got.double() - want).abs() / allowed).max().item() if got.numel() else 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_a_product_is_that_of_torch(name, dtype):
    worst, taken = [], 0
    for info in opinfo.variants(name):
        for sample in opinfo.samples(info, dtype, 24):
            with suppress(DescriptorError):
                made, x, weight, more = call(name, sample)
                taken += 1
                shape = info.op(sample.input, *sample.args, **sample.kwargs).shape
                worst.append(far(name, info, sample, ran(made, x, weight, shape, **more), made.k))
    assert taken >= (1 if name in ("mv", "bmm") else 3)  # a release of torch has one sample of bmm
    assert max(worst) <= 1


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape))).bfloat16()


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("mk,kn->mn", (5, 7), (7, 3)), ("km,nk", (7, 5), (3, 7)), ("bhqd,bhkd->bhqk", (2, 3, 5, 4), (2, 3, 6, 4)),
        ("bqhd,hdn->bqn", (2, 5, 3, 4), (3, 4, 7)),
        ("tbd,bdn->btn", (5, 3, 4), (3, 4, 6)), ("ij,Ab->ijAb", (2, 3), (4, 5)), ("mk,k->m", (5, 7), (7,)),
        ("bmk,bnk->bmn", (1, 5, 7), (1, 3, 7)),
    ],
)  # fmt: skip
def test_einsum_multiplies_along_its_labels(equation, a, b):
    x, weight = drawn(*a), drawn(*b, seed=3)
    made = recipes.einsum(equation, x, weight)
    want = torch.einsum(equation, x.double(), weight.double())
    told = equation if "->" in equation else equation + "->mn"
    got = ran(made, *ordered(told, (x, weight), made), want.shape)
    torch.testing.assert_close(got.double(), want, rtol=2.0**-8, atol=1e-4)


@pytest.mark.parametrize(("a", "b"), [((5, 1, 4, 7), (3, 7, 2)), ((4, 7), (3, 7, 2)), ((7,), (3, 7, 2)), ((3, 4, 7), (7,))])
def test_matmul_expands_its_batches(a, b):
    x, weight = drawn(*a), drawn(*b, seed=3)
    made = recipes.matmul(x, weight)
    want = x.double() @ weight.double()
    if made.batch > 1:
        whole = x if x.dim() > 1 else x[None]
        batch = torch.broadcast_shapes(whole.shape[:-2], weight.shape[:-2])
        x, weight = whole.expand(*batch, *whole.shape[-2:]), weight.expand(*batch, *weight.shape[-2:])
    got = ran(made, x, weight, want.shape)
    torch.testing.assert_close(got.double(), want, rtol=2.0**-8, atol=1e-4)


def test_a_product_in_f32_of_16_bits_is_not_rounded_to_16():
    x, weight = drawn(5, 40), drawn(40, 3, seed=3)
    for got, want in (
        (ran(recipes.mm(x, weight, torch.float32), x, weight, (5, 3)), x.double() @ weight.double()),
        (
            ran(recipes.addmm(torch.ones(5, 3), x, weight, "f32", beta=2), x, weight, (5, 3), add=torch.ones(5, 3)),
            x.double() @ weight.double() + 2,
        ),
    ):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=2e-5)


def test_with_a_beta_of_0_the_added_tensor_is_not_read():
    x, weight, nan = drawn(5, 4), drawn(4, 3), torch.full((5, 3), torch.nan).bfloat16()
    made = recipes.addmm(nan, x, weight, beta=0)
    assert not made.add
    assert torch.equal(ran(made, x, weight, (5, 3)), torch.addmm(nan, x, weight, beta=0))


def test_numbers_and_sizes_are_no_part_of_a_kernel():
    add, x, w = (shaped(*shape, dtype="bf16") for shape in ((4, 6), (4, 5), (5, 6)))
    one, other = recipes.addmm(add, x, w, alpha=0.5), recipes.addmm(add, x, w, beta=3)
    assert one != other
    assert Plan.select(one).sku.id == Plan.select(other).sku.id


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("wide", [torch.bfloat16, torch.float32])
def test_scaled_mm_has_the_scales_of_torch(blocks, wide):
    m, k, n = 5, 160, 272
    a, b = drawn(m, k).to(torch.float8_e4m3fn), drawn(n, k, seed=3).to(torch.float8_e4m3fn).T
    bias = drawn(n, seed=4)
    shapes = [((m, 2), (2, 3))] if blocks else [((), ()), ((m, 1), (1, n)), ((1,), (1, n)), ((m, 1), (1, 1))]
    for one, other in shapes:
        scale_a, scale_b = (torch.rand(shape) + 0.5 for shape in (one, other))
        made = recipes.scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=wide)
        whole_a = scale_a.repeat_interleave(128, 1)[:, :k] if blocks else scale_a
        whole_b = scale_b.repeat_interleave(128, 0)[:k].repeat_interleave(128, 1)[:, :n] if blocks else scale_b
        want = (a.double() * whole_a.double()) @ (b.double() * whole_b.double()) + bias.double()
        got = ran(made, a, b.T, (m, n), x_scale=scale_a, weight_scale=scale_b.T if scale_b.dim() > 1 else scale_b, bias=bias)
        assert got.dtype == wide
        torch.testing.assert_close(got.double(), want, rtol=2.0**-8 if wide is torch.bfloat16 else 1e-5, atol=1e-3)
    assert made.scaling == (Scaling(kind="block") if blocks else Scaling(kind="token", weight_kind="tensor"))


def halves(*shape, seed=2):
    return drawn(*shape, seed=seed).bfloat16()


ENDS = {
    "with an empty one": [3, 3, 9],
    "none at the end": [1, 9, 9],
    "rows behind the last": [2, 4, 6],
    "none at all": [0, 0, 0],
}


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("wide", [torch.bfloat16, torch.float32])
def test_grouped_mm_multiplies_groups_of_rows_as_torch_does(case, wide):
    a, b, offs = halves(9, 16), halves(3, 16, 8, seed=3), torch.tensor(ENDS[case], dtype=torch.int32)
    made = recipes.grouped_mm(a, b, offs=offs, out_dtype=wide)
    out = torch.full((9, 8), 77.0, dtype=wide)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int32), offs])
    Plan.select(made, Preference(backend="reference")).run(GroupedMatmulArgs(x=a, weight=b, indptr=indptr, out=out))
    begin = 0
    for group, end in enumerate(ENDS[case]):
        want = a[begin:end].double() @ b[group].double()
        torch.testing.assert_close(out[begin:end].double(), want, rtol=2.0**-8 if wide is torch.bfloat16 else 1e-6, atol=1e-5)
        begin = end
    assert bool((out[begin:] == 77).all())  # like torch, which leaves them
    if wide is torch.bfloat16:
        theirs = torch.nn.functional.grouped_mm(a, b, offs=offs)
        torch.testing.assert_close(out[:begin], theirs[:begin], rtol=2.0**-7, atol=1e-4)


def test_grouped_mm_sums_over_groups_of_k_for_gradients_of_weights():
    a, b, offs = halves(6, 11), halves(11, 8, seed=3), torch.tensor([4, 4, 11], dtype=torch.int32)
    made = recipes.grouped_mm(a, b, offs=offs)
    out = torch.full((3, 6, 8), 77.0, dtype=torch.bfloat16)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int32), offs])
    Plan.select(made, Preference(backend="reference")).run(GroupedMatmulArgs(x=a, weight=b, indptr=indptr, out=out))
    want = torch.stack([a[:, i:j].double() @ b[i:j].double() for i, j in ((0, 4), (4, 4), (4, 11))])
    torch.testing.assert_close(out.double(), want, rtol=2.0**-8, atol=1e-5)
    assert bool((out[1] == 0).all())


def test_grouped_mm_of_pairs_is_bmm():
    a, b = halves(3, 4, 16), halves(3, 16, 8, seed=3)
    assert recipes.grouped_mm(a, b) == recipes.bmm(a, b)
    theirs = torch.nn.functional.grouped_mm(a, b)
    torch.testing.assert_close(ran(recipes.grouped_mm(a, b), a, b, (3, 4, 8)), theirs, rtol=2.0**-7, atol=1e-4)


X, W, F8, ONE = shaped(4, 6, dtype="bf16"), shaped(6, 5, dtype="bf16"), shaped(4, 6, dtype="f8_e4m3"), shaped(1, dtype="f32")
F8W = shaped(6, 5, dtype="f8_e4m3")
STACK, ENDINGS = shaped(3, 6, 5, dtype="bf16"), shaped(3, dtype="i32")


@pytest.mark.parametrize(
    ("make", "argument", "words"),
    [
        (lambda: recipes.mm(X, X), "mat2", "[k, n] for an input of shape (4, 6)"),
        (lambda: recipes.mm(shaped(2, 4, 6, dtype="bf16"), W), "input", "a matrix"),
        (lambda: recipes.mm(X, shaped(6, 5, dtype="f32")), "mat2", "bf16, the dtype of input"),
        (lambda: recipes.mm(shaped(4, 6, dtype="i8"), shaped(6, 5, dtype="i8")), "input", "f16, bf16, f32, f64"),
        (lambda: recipes.mm(X, W, "f64"), "out_dtype", "f16, bf16 or f32"),
        (lambda: recipes.mm(X, W, "i32"), "out_dtype", "f16, bf16 or f32"),
        (lambda: recipes.bmm(shaped(2, 4, 6, dtype="f32"), shaped(3, 6, 5, dtype="f32")), "mat2", "[batch, k, n]"),
        (lambda: recipes.bmm(shaped(0, 4, 6, dtype="f32"), shaped(0, 6, 5, dtype="f32")), "input", "at least one matrix"),
        (lambda: recipes.addmm(shaped(3, 5, dtype="bf16"), X, W), "tensors", "shapes that broadcast"),
        (lambda: recipes.addmm(shaped(2, 4, 5, dtype="bf16"), X, W), "input", "a shape that expands to (4, 5)"),
        (lambda: recipes.addmm(shaped(4, 5, dtype="f32"), X, W), "input", "bf16, the dtype of the result"),
        (lambda: recipes.addmm(shaped(4, 5, dtype="bf16"), X, W, alpha="a"), "alpha", "a number"),
        (lambda: recipes.linear(X, W), "weight", "[n, k] or [k] for an input of shape (4, 6)"),
        (lambda: recipes.linear(X, X, shaped(5, dtype="bf16")), "bias", "shape (4,)"),
        (lambda: recipes.matmul(X, shaped(dtype="bf16")), "other", "at least one axis"),
        (lambda: recipes.matmul(X, X), "other", "6 rows, the number of columns of input"),
        (lambda: recipes.mv(X, shaped(4, dtype="bf16")), "vec", "6 elements"),
        (lambda: recipes.einsum("mk,kn", X), "operands", "two tensors"),
        (lambda: recipes.einsum("...k,kn", X, W), "equation", "letters for the axes of two operands"),
        (lambda: recipes.einsum("kk,kn->n", X, W), "equation", "each label at most once"),
        (lambda: recipes.einsum("mk,kn->mx", X, W), "equation", "each label at most once"),
        (lambda: recipes.einsum("mk,kn->n", X, W), "equation", "a result with 'm', which occurs in only one operand"),
        (lambda: recipes.einsum("mk,kn->nm", X, W), "equation", "swap the operands"),
        (lambda: recipes.einsum("mk,nk->mn", X, W), "operands[1]", "6 elements along 'k'"),
        (lambda: recipes.einsum("mkj,kn->mn", X, W), "operands[0]", "3 axes, 'mkj'"),
        (lambda: recipes.einsum("imj,ij->m", shaped(2, 4, 6, dtype="f32"), shaped(2, 6, dtype="f32")), "equation",
         "the axes 'ij' adjacent"),
        (lambda: recipes.einsum("bqhd,bkhd->bhqk", *[shaped(2, 5, 3, 4, dtype="f32")] * 2), "equation",
         "the axes 'bh' adjacent"),
        (lambda: recipes.einsum("mkb,bkn->bmn", shaped(4, 6, 2, dtype="f32"), shaped(2, 6, 5, dtype="f32")), "equation",
         "at the end of 'mkb'"),
        (lambda: recipes.scaled_mm(X, W, ONE, ONE, out_dtype="bf16"), "input", "f8_e4m3, f8_e5m2"),
        (lambda: recipes.scaled_mm(F8, F8W, ONE, ONE), "out_dtype", "f16, bf16 or f32"),
        (lambda: recipes.scaled_mm(F8, F8W, ONE, X, out_dtype="bf16"), "scale_b", "f32"),
        (lambda: recipes.scaled_mm(F8, F8W, shaped(3, 1, dtype="f32"), ONE, out_dtype="bf16"), "scale_a", "for blocks of 128"),
        (lambda: recipes.scaled_mm(F8, F8W, ONE, ONE, scale_result=ONE, out_dtype="bf16"), "scale_result", "None"),
        (lambda: recipes.scaled_mm(F8, F8W, ONE, ONE, X, out_dtype="bf16"), "bias", "of shape (5,)"),
        (lambda: recipes.grouped_mm(X, STACK), "offs", "int32 [groups]"),
        (lambda: recipes.grouped_mm(X, STACK, offs=shaped(3, dtype="i64")), "offs", "int32 [groups]"),
        (lambda: recipes.grouped_mm(X, STACK, offs=shaped(4, dtype="i32")), "mat_b", "4 matrices"),
        (lambda: recipes.grouped_mm(X, X, offs=ENDINGS), "mat_b", "[k, n] or [groups, k, n]"),
        (lambda: recipes.grouped_mm(X, STACK, offs=ENDINGS, bias=X), "bias", "None"),
        (lambda: recipes.grouped_mm(shaped(3, 4, 6, dtype="bf16"), W, offs=ENDINGS), "mat_a", "groups of columns"),
        (lambda: recipes.grouped_mm(shaped(3, 4, 6, dtype="bf16"), STACK, offs=ENDINGS), "offs", "None for matrices in pairs"),
        (lambda: recipes.grouped_mm(shaped(2, 4, 6, dtype="bf16"), STACK), "mat_b", "2 matrices"),
    ],
)  # fmt: skip
def test_an_argument_without_a_meaning_is_refused_by_name(make, argument, words):
    with pytest.raises(DescriptorError, match=r"^recipes\.\w+\.descriptor: ") as caught:
        make()
    assert caught.value.issues[0].argument == argument
    assert words in str(caught.value)
