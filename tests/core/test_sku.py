"""KernelSku and PrecisionGuarantee: honest, canonical, one id for one SKU."""

import copy
import hashlib
import pickle
import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade import ErrorModel, KernelSku, PrecisionGuarantee, Preference, Target
from opfacade.core.dtypes import DTYPES, DType, FloatDType, torch_dtype
from opfacade.core.guarantee import Condition
from opfacade.core.sku import is_older_sku_id, is_sku_id
from opfacade.errors import DescriptorError
from opfacade.select.registry import candidates_for, examples
from opfacade.select.selection import survey

PLAIN = {"math_precision": "f32", "accumulator": "f32", "error_model": ErrorModel(id="exact")}
SKU = {
    "category": "attention", "op": "x", "backend": "cuda", "arch": "sm_90a", "impl": "y", "revision": 1,
    "dtypes": (("kv", "f16"),), "layout": "strided", "precision_guarantee": PrecisionGuarantee(**PLAIN),
}  # fmt: skip

words = st.from_regex(r"\A[A-Za-z][A-Za-z0-9_.+-]{0,5}\Z").filter(lambda w: w not in ("true", "false"))
values = st.one_of(st.booleans(), st.integers(-3, 300), words, st.sampled_from(["True", "f", "t", "x1"]))


def pairs(value):
    return st.dictionaries(words, value, max_size=3).map(lambda d: tuple(sorted(d.items())))


reals = st.floats(allow_nan=False, allow_infinity=False)
models = st.builds(ErrorModel, id=words, constants=pairs(reals))
guarantees = st.builds(
    PrecisionGuarantee, math_precision=words, accumulator=st.sampled_from(["f32", "f64", "none"]),
    deterministic=st.just(True), batch_invariant=st.sampled_from(["none", "composition"]), error_model=models,
    conditions=st.lists(words.map(lambda w: Condition(id=w, text=w)), max_size=2).map(tuple),
    evidence=st.just(("tests/x.py::test_y",)),
)  # fmt: skip
skus = st.builds(
    KernelSku, category=words, op=words, backend=words, arch=words, impl=words, revision=st.integers(1, 3), layout=words,
    dtypes=pairs(words), spec=pairs(values), precision_guarantee=guarantees,
)  # fmt: skip


def changed(sku, field, value):
    return KernelSku(**(dict(sku) | {field: value}))


@settings(max_examples=60, deadline=None)
@given(skus, skus)
def test_equal_ids_are_equal_skus(a, b):
    assert (a.id == b.id) == (a.canonical_json() == b.canonical_json())


@settings(max_examples=60, deadline=None)
@given(skus, st.data())
def test_a_change_of_any_one_field_changes_the_id(sku, data):
    field = data.draw(st.sampled_from([f for f in KernelSku.model_fields if f != "schema_version"]))
    drawn = {"revision": st.integers(1, 9), "dtypes": pairs(words), "spec": pairs(values), "precision_guarantee": guarantees}
    other = changed(sku, field, data.draw(drawn.get(field, words)))
    assert (sku.id == other.id) == (sku.canonical_json() == other.canonical_json())


def test_renaming_the_evidence_keeps_the_id():
    a, b = (
        KernelSku(**SKU | {"precision_guarantee": PrecisionGuarantee(**PLAIN, deterministic=True, evidence=(e,))}) for e in "ab"
    )
    assert a.id == b.id
    assert a != b


@settings(max_examples=40, deadline=None)
@given(skus)
def test_json_round_trip_is_identity(sku):
    again = KernelSku.model_validate_json(sku.model_dump_json())
    assert again == sku
    assert (again.id, again.digest(), hash(again)) == (sku.id, sku.digest(), hash(sku))
    assert pickle.loads(pickle.dumps(sku)) == sku


@settings(max_examples=40, deadline=None)
@given(skus)
def test_an_id_is_one_word_for_a_shell_and_a_file_name_with_slashes(sku):
    assert re.fullmatch(r"[A-Za-z0-9_.+=,@/-]+", sku.id)
    assert sku.id.count("/") == 8
    assert str(sku) == sku.id


def test_a_known_sku_has_its_known_id():
    sku = KernelSku(**SKU, spec=(("causal", True), ("group", 4), ("split", "auto")))
    promised = '{"accumulator":"f32","error_model":{"id":"exact"},"math_precision":"f32"}'
    guarantee = hashlib.sha256(promised.encode()).hexdigest()[:16]
    assert sku.id == f"attention/x/cuda/sm_90a/y@1/kv=f16/strided/causal=true,group=4,split=auto/g2.{guarantee}"


@pytest.mark.parametrize(("a", "b"), [(True, 1), (True, "True"), (1, "x1"), (False, 0), ("f", False)])
def test_values_that_print_alike_have_different_ids(a, b):
    assert KernelSku(**SKU, spec=(("a", a),)).id != KernelSku(**SKU, spec=(("a", b),)).id


@pytest.mark.parametrize("field", ["category", "op", "backend", "arch", "impl", "layout"])
@pytest.mark.parametrize("value", ["", "a/b", "a@1", "a,b", "a=b", "1a", "a b", "x" * 65, "a\n", 3])
def test_a_word_with_a_separator_is_refused(field, value):
    with pytest.raises(DescriptorError, match=field):
        KernelSku(**(SKU | {field: value}))


@pytest.mark.parametrize(
    "spec",
    [
        (("b", 1), ("a", 1)),
        (("a", 1), ("a", 2)),
        (("a", "true"),),
        (("a", "false"),),
        (("a", 1.5),),
        (("a=", 1),),
        (("a", "x,y"),),
    ],
)
def test_a_spec_that_is_not_canonical_is_refused(spec):
    with pytest.raises(DescriptorError, match="spec"):
        KernelSku(**SKU, spec=spec)


@pytest.mark.parametrize("claim", [{"deterministic": True}, {"batch_invariant": "composition"}])
def test_a_claim_without_evidence_is_refused(claim):
    with pytest.raises(DescriptorError, match="OPF-D005"):
        PrecisionGuarantee(**PLAIN, **claim)
    assert PrecisionGuarantee(**PLAIN, **claim, evidence=("tests/x.py::test_y",))


def test_stability_without_determinism_is_refused():
    with pytest.raises(DescriptorError, match="OPF-D005"):
        PrecisionGuarantee(**PLAIN, bit_stable_on_same_hardware=True, evidence=("t",))
    assert PrecisionGuarantee(**PLAIN, bit_stable_on_same_hardware=True, deterministic=True, evidence=("t",))


def test_evidence_without_a_claim_is_legal():
    assert not PrecisionGuarantee(**PLAIN, evidence=("t",)).deterministic


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_constant_must_be_finite(value):
    with pytest.raises(DescriptorError, match="constants"):
        ErrorModel(id="exact", constants=(("u", value),))


def test_a_change_of_promise_changes_the_id():
    base = KernelSku(**SKU)
    for change in (
        {"math_precision": "tf32"},
        {"conditions": (Condition(id="x", text=""),)},
        {"accumulator": "i64"},
        {"error_model": ErrorModel(id="exact", constants=(("ulp.exp", 2.0),))},
        {"error_model": ErrorModel(id="merge-f32")},
    ):
        assert changed(base, "precision_guarantee", PrecisionGuarantee(**(PLAIN | change))).id != base.id


def test_another_wording_of_a_condition_keeps_the_id():
    a, b = (PrecisionGuarantee(**PLAIN, conditions=(Condition(id="x", text=text),)) for text in ("so", "or so"))
    assert KernelSku(**SKU | {"precision_guarantee": a}).id == KernelSku(**SKU | {"precision_guarantee": b}).id


def test_fields_of_a_promise_that_come_later_move_no_id():
    class LaterModel(ErrorModel):
        scope: str = "all"

    class Later(PrecisionGuarantee):
        error_model: LaterModel
        rounding: str = "nearest"

    now = PrecisionGuarantee(**PLAIN, conditions=(Condition(id="x", text="x"),))
    later = Later(**PLAIN | {"error_model": LaterModel(id="exact")}, conditions=now.conditions)
    assert later.promised() == now.promised()
    assert later.model_copy(update={"rounding": "up"}).promised() != now.promised()


def test_a_program_over_any_dtypes_has_an_id_of_todays_form():
    model = ErrorModel(id="program", constants=(("ulp.exp", 1.0), ("ulp.rsqrt", 2.0)))
    promise = PrecisionGuarantee(math_precision="f64", accumulator="i64", error_model=model)
    sku = KernelSku(
        **SKU | {"category": "map", "precision_guarantee": promise},
    ).model_copy(update={"dtypes": tuple((f"x{i:02}", name) for i, name in enumerate(DTYPES))})
    sku = sku.model_copy(update={"revision": 12, "spec": (("math", "approx"), ("program", "p0123456789abcdef01234567"))})
    parts = sku.revalidated().id.split("/")
    assert is_sku_id(sku.id)
    assert parts[4:8:3] == ["y@12", "math=approx,program=p0123456789abcdef01234567"]
    assert [pair.split("=")[1] for pair in parts[5].split(",")] == list(DTYPES)


def test_each_family_lists_its_error_models_strictest_first_and_states_no_other():
    for descriptor in grid():
        kind = type(descriptor)
        assert kind.error_models[0] == "exact"
        assert re.fullmatch("[a-z_]+", kind.category)
        for option in survey(descriptor, Preference(), Target.parse("sm_90a")):
            if option.sku is not None:
                assert option.sku.precision_guarantee.error_model.id in kind.error_models
                assert option.sku.category == kind.category


def test_the_base_of_lse_is_a_fact_of_every_sku_of_attention_and_of_no_other():
    for example in examples():
        for option in survey(example, Preference(), Target.parse("sm_90a")):
            if option.sku is not None:
                assert dict(option.sku.spec).get("lse_base") == ("e" if example.category == "attention" else None)


def test_the_dtype_table_says_what_torch_says():
    import torch

    assert set(get_args(DType)) == set(DTYPES)
    assert set(get_args(FloatDType)) <= set(DTYPES)
    for name, facts in DTYPES.items():
        dtype = torch_dtype(name)
        assert dtype.itemsize * 8 == facts.bits
        assert dtype.is_floating_point == facts.is_float, name
        if facts.roundoff:
            assert facts.roundoff == torch.finfo(dtype).eps / 2
            assert facts.underflow == max(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2, 2.0**-1074)


def test_the_dtype_table_has_the_codes_of_dlpack():
    import torch

    for name in ("f16", "bf16", "f32", "f64", "i8", "i32", "i64", "u8", "bool"):
        exchanged = str(tvm_dtype(torch.zeros(1, dtype=torch_dtype(name))))
        assert exchanged == NAMES_OF_DLPACK[DTYPES[name].dlpack_code] + (str(DTYPES[name].bits) if name != "bool" else ""), name


NAMES_OF_DLPACK = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


def tvm_dtype(tensor):
    import tvm_ffi

    return tvm_ffi.from_dlpack(tensor).dtype


def test_an_id_of_the_first_form_is_told_from_todays():
    sku = KernelSku(**SKU).id
    older = sku.replace("/g2.", "/g.")
    assert is_sku_id(sku)
    assert not is_older_sku_id(sku)
    assert is_older_sku_id(older)
    assert not is_sku_id(older)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "cpu"])
def test_different_binaries_or_promises_of_the_library_have_different_ids(target):
    """Over every example, field by field: one id, one SKU and one set of compile-time constants."""
    seen = {}
    for descriptor in grid():
        for option in survey(descriptor, Preference(), Target.parse(target)):
            if option.sku is not None:
                binary = repr(option.candidate.jit_specs(descriptor, Target.parse(target)))
                assert seen.setdefault(option.sku.id, (option.sku, binary)) == (option.sku, binary)
    assert len(seen) >= 5


CHANGES = {
    "window_left": [0, 64], "logits_soft_cap": [30.0], "kv_split": ["off", 256], "causal": [True, False], "return_lse": [False],
    "page_table": ["csr", "block"], "sm_scale": [0.5], "batch_size": [1, 900], "num_qo_heads": [8, 56],
    "head_dim": [64, 128, 192, 256], "head_dim_vo": [None, 64, 128], "kv_scale": ["none", "tensor", "head"],
    "dtype": ["f16", "bf16", "f32", "f8_e4m3"], "total_num_rows": [1, 100000],
}  # fmt: skip
CACHES = {
    "page_size": [1, 16, 48],
    "layout": ["HND", "NHD"],
    "dtype": ["f16", "bf16", "f32", "f8_e4m3"],
    "head_dim": [64, 128, 256],
}


def grid():
    """Every example, and variants of it with one field changed."""
    for example in examples():
        yield example
        for field, values in CHANGES.items():
            for value in values if field in type(example).model_fields else ():
                try:
                    yield type(example)(**(dict(example) | {field: value}))
                except DescriptorError:
                    continue  # 8 heads are not a multiple of every example's KV heads
        for field, values in CACHES.items():
            for value in values if hasattr(example, "paged_kv") else ():
                try:
                    yield type(example)(**(dict(example) | {"paged_kv": dict(example.paged_kv) | {field: value}}))
                except DescriptorError:
                    continue  # a factor needs an fp8 cache


def folds_a_size(example):
    return bool(getattr(example, "makes_scales", False)) or getattr(example, "folds_rows", lambda: False)()


CHOICES = {"split", "repack", "swapped", "cluster", "own", "along", "aside", "tile_rows", "tile_columns", "tile_panels"}


def test_ids_do_not_depend_on_the_size_of_a_call():
    for example in examples():
        if not example.sizes or folds_a_size(example):
            continue  # the size of a folded axis chooses the kernel
        sizes = {"batch_size": example.batch_size + 1} if hasattr(example, "batch_size") else {"total_num_rows": 1}
        if "shape" in example.sizes:
            sizes = {"shape": tuple(size + 1 for size in example.shape)}
        if not sizes.keys() & type(example).model_fields.keys():
            more = {"n": 8, "k": 128} if example.category == "weights" else {}  # whole words, tiles and groups
            sizes = {name: getattr(example, name) + more.get(name, 1) for name in example.sizes}
        bigger = type(example)(**(dict(example) | sizes))
        for candidate in candidates_for(type(example)):
            if not candidate.declines(example, Target.parse("sm_90a")):
                one, other = (candidate.sku(d, Target.parse("sm_90a")) for d in (example, bigger))
                # A size may choose a tile, a split and a copy of operands, which are other binaries. The size itself is in no
                # id.
                differ = {name for name, _ in set(one.spec) ^ set(other.spec)}
                assert differ <= CHOICES
                assert differ or one == other


def test_an_id_that_was_asked_for_is_not_handed_on_to_what_differs():
    one = next(c for c in candidates_for(type(examples()[0])) if c.backend == "reference").sku(examples()[0], Target.cpu())
    assert "/torch@" in one.id
    other = one.model_copy(update={"impl": "other"})
    assert "/other@" in other.id
    for same in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one), one.revalidated()):
        assert same == one
        assert hash(same) == hash(one)
        assert same.id == one.id
    assert "_text" not in one.model_dump()
