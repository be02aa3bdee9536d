"""Descriptors: refused fields, and equal results for equal values."""

import pickle
import random

import numpy as np
import pytest

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import Descriptor, forget_specializations
from opfacade.errors import ArgumentTypeError, DescriptorError
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor, PagedKvAppendPlan
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.programs.fields import Input
from opfacade.select.registry import examples
from opfacade.select.selection import considered

CACHE = {"num_total_pages": 8, "page_size": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": "f16", "layout": "HND"}
PREFILL = {"batch_size": 2, "total_num_rows": 5, "num_qo_heads": 4, "causal": True, "paged_kv": CACHE}
DECODE = {"batch_size": 2, "num_qo_heads": 4, "paged_kv": CACHE}
RAGGED = {
    "batch_size": 2, "total_num_rows": 5, "total_kv_rows": 9, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64,
    "causal": False, "dtype": "bf16",
}  # fmt: skip
APPEND = {"batch_size": 2, "total_num_rows": 5, "paged_kv": CACHE}
MERGE = {"num_states": 2, "total_num_rows": 5, "num_heads": 4, "head_dim": 64, "dtype": "f16"}
LATENT = {"num_total_pages": 8, "page_size": 4, "dtype": "bf16"}
MLA = {"batch_size": 2, "num_qo_heads": 16, "paged_kv": LATENT}
KINDS = {
    PagedKvCacheDescriptor: CACHE, BatchPagedPrefillDescriptor: PREFILL, BatchPagedDecodeDescriptor: DECODE,
    BatchRaggedPrefillDescriptor: RAGGED, PagedKvAppendDescriptor: APPEND, MergeStatesDescriptor: MERGE,
    PagedLatentCacheDescriptor: LATENT, BatchMlaDecodeDescriptor: MLA,
}  # fmt: skip
EXAMPLES = examples()


def each(kinds, want):
    """(kind, field) for every field with the property `want`."""
    return [(kind, name) for kind in kinds for name in kind.model_fields if name in want]


SIZES = {
    "page_size", "num_kv_heads", "head_dim", "head_dim_vo", "latent_dim", "rope_dim", "num_qo_heads", "num_states", "num_heads",
}  # fmt: skip
COUNTS = {"batch_size", "total_num_rows", "total_kv_rows", "num_total_pages", "max_kv_indices", "max_kv_len"}


def refused(kind, code, path, **change):
    """The error of a descriptor with some fields changed; `path` is the field it must name."""
    with pytest.raises(DescriptorError) as caught:
        kind(**(KINDS[kind] | change))
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.code, error.issues[0].argument) == (code, path)
    assert f"[{code}]" in str(error)
    assert error.errors()
    return error


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_the_valid_one_is_valid(kind):
    assert getattr(kind(**KINDS[kind]), "schema_version", 1) == 1


@pytest.mark.parametrize(("kind", "field"), each(KINDS, SIZES | COUNTS))
def test_a_negative_number_is_refused(kind, field):  # row 1
    bound = "greater than or equal to " + ("1" if field in SIZES else "0")
    assert bound in refused(kind, "OPF-D002", field, **{field: -3}).issues[0].expected


@pytest.mark.parametrize(("kind", "field"), each(KINDS, SIZES))
def test_a_size_of_zero_is_refused(kind, field):  # row 2
    assert refused(kind, "OPF-D002", field, **{field: 0}).issues[0].got == "0"


@pytest.mark.parametrize(("kind", "field"), each(KINDS, {"batch_size", "total_num_rows", "total_kv_rows", "num_total_pages"}))
def test_a_count_of_zero_is_legal(kind, field):  # row 3
    made = kind(**(KINDS[kind] | {field: 0}))
    assert getattr(made, field) == 0
    if hasattr(made, "operands"):
        assert Plan.select(made, target=Target.cpu()).sku.id


@pytest.mark.parametrize("value", [True, "8", 8.0, np.float32(8), None, [8]], ids=repr)
@pytest.mark.parametrize(("kind", "field"), each(KINDS, (SIZES | COUNTS) - {"max_kv_indices", "max_kv_len", "head_dim_vo"}))
def test_only_an_integer_is_an_integer(kind, field, value):  # row 4
    refused(kind, "OPF-D001", field, **{field: value})


@pytest.mark.parametrize("value", [np.int64(8), np.int32(8), np.uint8(8)], ids=repr)
@pytest.mark.parametrize(("kind", "field"), each(KINDS, SIZES | COUNTS))
def test_numpy_integers_are_integers(kind, field, value):  # row 4
    made = kind(**(KINDS[kind] | {field: value}))
    assert type(getattr(made, field)) is int
    assert made == kind(**(KINDS[kind] | {field: 8}))
    assert hash(made) == hash(kind(**(KINDS[kind] | {field: 8})))


@pytest.mark.parametrize(("kind", "field"), each(KINDS, SIZES | COUNTS))
def test_a_number_beyond_int32_is_refused(kind, field):  # row 5
    assert "2147483647" in refused(kind, "OPF-D002", field, **{field: 2**31}).issues[0].expected


def test_products_beyond_int64_are_refused():  # row 5
    big = 2**31 - 1
    message = str(
        refused(PagedKvCacheDescriptor, "OPF-D005", "num_total_pages", num_total_pages=big, page_size=big, num_kv_heads=2)
    )
    assert str(big * big * 2 * 64 * 2) in message
    refused(BatchPagedPrefillDescriptor, "OPF-D005", "total_num_rows", total_num_rows=big, num_qo_heads=big - 1)
    refused(
        BatchRaggedPrefillDescriptor,
        "OPF-D005",
        "total_kv_rows",
        total_kv_rows=big,
        num_kv_heads=big,
        num_qo_heads=big,
    )
    refused(MergeStatesDescriptor, "OPF-D005", "num_states", num_states=big, total_num_rows=big)


@pytest.mark.parametrize("kind", [BatchPagedPrefillDescriptor, BatchPagedDecodeDescriptor, PagedKvAppendDescriptor])
def test_lengths_must_fit_int32(kind):  # row 88
    refused(kind, "OPF-D005", "max_kv_indices", max_kv_indices=2**29)
    assert kind(**(KINDS[kind] | {"max_kv_indices": 2**29 - 1})).max_kv_indices == 2**29 - 1
    refused(kind, "OPF-D005", "paged_kv.num_total_pages", paged_kv=CACHE | {"num_total_pages": 2**29, "head_dim": 1})


@pytest.mark.parametrize("kind", [BatchPagedPrefillDescriptor, BatchPagedDecodeDescriptor, BatchRaggedPrefillDescriptor])
def test_query_heads_must_be_a_multiple_of_kv_heads(kind):  # row 6
    message = str(refused(kind, "OPF-D005", "num_qo_heads", num_qo_heads=5))
    assert "num_qo_heads expected a multiple of num_kv_heads=2, got 5." in message


ATTENTION = [BatchPagedPrefillDescriptor, BatchPagedDecodeDescriptor, BatchRaggedPrefillDescriptor]


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("sm_scale", float("nan"), "OPF-D002"),
        ("sm_scale", float("inf"), "OPF-D002"),
        ("sm_scale", "1", "OPF-D001"),
        ("logits_soft_cap", -1.0, "OPF-D002"),
        ("logits_soft_cap", 1e-50, "OPF-D002"),
        ("logits_soft_cap", 2.0**-126 * (1 - 2.0**-53), "OPF-D002"),
        ("logits_soft_cap", float("nan"), "OPF-D002"),
        ("logits_soft_cap", float("inf"), "OPF-D002"),
        ("window_left", -2, "OPF-D002"),
        ("window_left", 1.0, "OPF-D001"),
        ("window_left", 2**31, "OPF-D002"),
        ("q_dtype", "float16", "OPF-D002"),
        ("return_lse", 1, "OPF-D001"),
        ("allow_unusual_scale", "yes", "OPF-D001"),
    ],
)
def test_a_wrong_attention_field_is_refused(kind, field, value, code):  # rows 10, 11, 15
    refused(kind, code, field, **{field: value})


@pytest.mark.parametrize("value", [0, -0.125, -0.0])
def test_an_unusual_scale_must_be_meant(value):  # row 10
    error = refused(BatchPagedDecodeDescriptor, "OPF-D005", "sm_scale", sm_scale=value)
    assert error.issues[0].hint == "If this is intended, set allow_unusual_scale=True."
    assert BatchPagedDecodeDescriptor(**DECODE, sm_scale=value, allow_unusual_scale=True).scale == value


@pytest.mark.parametrize("value", [0, -1, 2**31, True, 1.0, "on", "16", None])
def test_a_wrong_split_is_refused(value):  # row 13
    with pytest.raises(DescriptorError) as caught:
        BatchPagedDecodeDescriptor(**DECODE, kv_split=value)
    assert caught.value.issues[0].argument.startswith("kv_split")


@pytest.mark.parametrize(
    ("kind", "field"), [*each(KINDS, {"dtype"}), (PagedKvCacheDescriptor, "layout"), (BatchPagedDecodeDescriptor, "page_table")]
)
def test_an_unknown_word_is_refused_and_the_known_ones_told(kind, field):  # row 15
    issue = refused(kind, "OPF-D002", field, **{field: "fp16"}).issues[0]
    assert issue.got == "'fp16'"
    assert {"dtype": "'f8_e5m2'", "layout": "'NHD'", "page_table": "'block'"}[field] in issue.expected


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_a_misspelt_field_is_refused(kind):  # row 17
    refused(kind, "OPF-D003", "head_dims", head_dims=64)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_every_missing_field_is_told(kind):
    with pytest.raises(DescriptorError) as caught:
        kind()
    assert {i.argument for i in caught.value.issues} == {n for n, f in kind.model_fields.items() if f.is_required()}
    assert {i.code for i in caught.value.issues} == {"OPF-D004"}


def test_a_nested_field_is_told_with_its_path():
    refused(BatchPagedDecodeDescriptor, "OPF-D002", "paged_kv.head_dim", paged_kv=CACHE | {"head_dim": -64})


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0])
def test_another_schema_version_is_refused(version):  # row 17
    refused(MergeStatesDescriptor, "OPF-D002", "schema_version", schema_version=version)


def test_a_descriptor_is_frozen():
    with pytest.raises(Exception, match="frozen") as caught:
        EXAMPLES[0].batch_size = 4
    assert isinstance(caught.value, ValueError)


def bypassed():
    """Invalid descriptors that bypassed the constructor."""
    good = BatchPagedDecodeDescriptor(**DECODE)
    mutated = BatchPagedDecodeDescriptor(**DECODE)
    mutated.__dict__["num_qo_heads"] = 5
    nested = BatchPagedDecodeDescriptor(**DECODE)
    nested.paged_kv.__dict__["head_dim"] = -1
    bad_cache = PagedKvCacheDescriptor.model_construct(**(CACHE | {"head_dim": 0}))
    listed = BatchPagedDecodeDescriptor.model_construct(**(DECODE | {"paged_kv": [1]}))
    return {
        "model_copy": good.model_copy(update={"num_qo_heads": 5}),
        "model_construct": BatchPagedDecodeDescriptor.model_construct(
            **(DECODE | {"num_qo_heads": 5, "paged_kv": good.paged_kv})
        ),
        "missing": BatchPagedDecodeDescriptor.model_construct(batch_size=2),
        "mutated": mutated,
        "nested": nested,
        "nested construct": good.model_copy(update={"paged_kv": bad_cache}),
        "pickle": pickle.loads(pickle.dumps(good.model_copy(update={"window_left": -7}))),
        "nan": good.model_copy(update={"sm_scale": float("nan")}),
        "op": good.model_copy(update={"op": "paged_prefill"}),
        "unhashable": listed,
    }


@pytest.mark.parametrize("how", bypassed())
def test_select_catches_what_bypassed_validation(how):  # row 18
    Plan.select(BatchPagedDecodeDescriptor(**DECODE), target=Target.cpu())
    with pytest.raises(DescriptorError, match="OPF-D00"):
        Plan.select(bypassed()[how], target=Target.cpu())


def test_what_passed_validation_is_not_validated_again_until_it_differs():
    good = BatchPagedDecodeDescriptor(**DECODE | {"batch_size": 1})
    assert good.revalidated() is good
    assert good.model_copy().revalidated() is not good
    for name, value in (("batch_size", True), ("num_qo_heads", 4.0), ("unknown", None)):  # equality is not enough
        changed = BatchPagedDecodeDescriptor(**DECODE | {"batch_size": 1})
        changed.__dict__[name] = value
        with pytest.raises(DescriptorError):
            changed.revalidated()


def test_the_type_of_a_call_is_the_parameter_of_the_base():
    class Own(Descriptor[MergeStatesArgs]):
        pass

    class Child(Own):
        pass

    assert (Own.args_type, Child.args_type, MergeStatesDescriptor.args_type) == (MergeStatesArgs,) * 3
    assert "args_type" not in vars(Descriptor)


def test_sizes_are_fields():
    for kind in KINDS:
        assert kind.sizes <= set(kind.model_fields)


def _of_other_sizes(example, rng):
    """The same kind of problem: splits keep their maximum number of parts, a list of states its length, a width its groups."""
    drawn = lambda: rng.choice((1, 2, 3, 16, 40, 1000))  # noqa: E731
    several = {name: value for name, value in example if name in type(example).sizes}
    fields = {name: tuple(drawn() for _ in value) if isinstance(value, tuple) else drawn() for name, value in several.items()}
    if getattr(example, "states", "") == "list":
        fields["num_states"] = rng.randint(1, 8)
    if hasattr(example, "paged_kv"):
        fields["paged_kv"] = example.paged_kv.model_dump() | {"num_total_pages": rng.choice((1, 40, 600, 5000, 100000))}
        fields["max_kv_indices"] = None
    quant = getattr(example, "quant", None)
    if "width" in fields and quant is not None and quant.scale == "group":
        fields["width"] *= quant.group
    if example.op == "grouped_matmul" and not example.gather:
        fields["num_x_rows"] = None
    if "shard" in fields:  # the ranks together have all tokens
        fields["shard"] = -(-fields["vocab"] // example.world)
    if "max_top_k" in fields and not example.top_k:
        fields["max_top_k"] = None
    if hasattr(example, "tile"):  # whether tiles end at the end of a shard belongs to the kind
        fields["shard"] += (fields["shard"] % example.tile == 0) != (example.shard % example.tile == 0)
    if example.category == "sampling":
        fields |= _of_sampling(example, several, rng)
    if getattr(example, "op", "") == "fused_moe" and example.scaling == "block":  # whole blocks
        fields |= {name: 128 * fields[name] for name in ("hidden", "width")}
    if example.category == "weights":  # whole words, tiles and groups
        fields |= {"n": 8 * fields["n"], "k": 128 * fields["k"]}
    return type(example).model_validate(example.model_dump() | fields)


def _of_sampling(example, several, rng):
    """Valid values: two streams, few drafts and reported tokens, thresholds for a tree. A size that the problem lacks stays 0
    or None.
    """
    stream, draft_stream = rng.sample(range(2**31), 2)
    own = {"stream": stream, "draft_stream": draft_stream, "num_drafts": rng.randint(1, 128), "top_n": rng.randint(1, 128)}
    for name in ("threshold_single", "threshold_acc"):
        own[name] = 1.0 - rng.random() if getattr(example, "kind", "") == "tree" else 1.0
    lacking = {name: value for name, value in several.items() if not value and name != "stream"}
    return {name: value for name, value in (own | lacking).items() if name in several}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.op)
@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_what_is_remembered_of_a_kind_is_true_of_all_its_sizes(example, target):
    rng = random.Random(f"{example.digest()} {target}")
    machine = Target.parse(target)
    several = [_of_other_sizes(example, rng) for _ in range(8)]
    assert {d.specialization for d in several} == {several[0].specialization}
    remembered = [considered(d, Preference(), machine) for d in several]
    for descriptor, told in zip(several, remembered, strict=True):
        forget_specializations()
        fresh = type(descriptor).model_validate(descriptor.model_dump())
        assert considered(fresh, Preference(), machine) == told


@pytest.mark.parametrize("thing", [None, "paged_decode", DECODE, Target.cpu(), PagedKvCacheDescriptor(**CACHE)], ids=repr)
def test_what_is_no_descriptor_is_a_type_error(thing):  # row 19
    with pytest.raises(TypeError, match="OPF-S030") as caught:
        Plan.select(thing, target=Target.cpu())
    assert isinstance(caught.value, ArgumentTypeError)


@pytest.mark.parametrize("plan", [BatchPagedDecodePlan, PagedKvAppendPlan])
def test_a_named_plan_refuses_another_ops_descriptor(plan):  # row 19
    foreign = BatchPagedPrefillDescriptor(**PREFILL)
    Plan.select(foreign, target=Target.cpu())
    with pytest.raises(ArgumentTypeError, match=r"got BatchPagedPrefillDescriptor.*\[OPF-S031\]"):
        plan.select(foreign, target=Target.cpu())


@pytest.mark.parametrize("field", ["sm_scale", "logits_soft_cap"])
def test_a_number_that_is_not_finite_on_the_device_is_refused(field):
    refused(BatchPagedDecodeDescriptor, "OPF-D002", field, **{field: 1e308})
    largest = (2 - 2.0**-23) * 2.0**127
    assert getattr(BatchPagedDecodeDescriptor(**(KINDS[BatchPagedDecodeDescriptor] | {field: largest})), field) == largest


@pytest.mark.parametrize("kind", ATTENTION)
def test_a_scale_over_the_soft_cap_is_finite_on_the_device(kind):
    least = 2.0**-126
    assert kind(**(KINDS[kind] | {"logits_soft_cap": least, "sm_scale": 3.5})).logits_soft_cap == least
    refused(kind, "OPF-D005", "logits_soft_cap", logits_soft_cap=least, sm_scale=4.0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"shape": []}, "at least 1 item"),
        ({"shape": [1] * 9}, "at most 8 items"),
        ({"name": "1"}, r"pattern '\A[A-Za-z][A-Za-z0-9_]{0,31}\z'"),
        ({"over": [8]}, "less than 8"),
    ],
)
def test_a_message_says_what_is_expected_and_nothing_twice(fields, expected):
    with pytest.raises(DescriptorError) as caught:
        Input(**({"name": "x", "dtype": "f32"} | fields))
    assert [issue.expected for issue in caught.value.issues] == [expected]


def test_messages_are_sentences():
    error = refused(BatchPagedDecodeDescriptor, "OPF-D003", "foo", foo=1)
    assert "foo expected no field with this name, got 1." in str(error)
    missing = {name: value for name, value in KINDS[BatchPagedDecodeDescriptor].items() if name != "batch_size"}
    with pytest.raises(DescriptorError, match=r"batch_size expected a value, got nothing\."):
        BatchPagedDecodeDescriptor(**missing)
