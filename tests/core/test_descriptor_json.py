"""Serialised descriptors: strict JSON, its schema, digests, and the recorded SKUs of the examples."""

import json
import os
import pickle
import subprocess
import sys

import pytest

from opfacade import Target, load_descriptor
from opfacade.errors import DescriptorError
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.plans.quantize import Quant
from opfacade.programs.fields import Input
from opfacade.select.registry import descriptor_types, examples
from opfacade.testing import matrix, problems
from opfacade.tools.catalogue import schema
from tests.core.test_descriptor import DECODE
from tests.support import regolden

EXAMPLES = examples()


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: d.op)
def test_json_round_trip_is_identity(descriptor):
    text = descriptor.model_dump_json()
    assert type(descriptor).model_validate_json(text) == descriptor
    assert load_descriptor(text) == descriptor
    assert load_descriptor(descriptor.canonical_json().encode()).digest() == descriptor.digest()
    assert pickle.loads(pickle.dumps(descriptor)) == descriptor


def test_equal_values_have_one_json():
    zero = BatchPagedDecodeDescriptor(**DECODE, logits_soft_cap=-0.0, sm_scale=1)
    assert zero == BatchPagedDecodeDescriptor(**DECODE, sm_scale=1.0)
    assert zero.digest() == BatchPagedDecodeDescriptor(**DECODE, sm_scale=1.0).digest()


@pytest.mark.parametrize("text", ["[]", "{}", "null", '{"op": "nope"}', '{"op": ["paged_decode"]}'])
def test_json_of_no_known_op_is_refused(text):
    with pytest.raises(DescriptorError, match="paged_decode") as caught:
        load_descriptor(text)
    assert caught.value.code == "OPF-D020"


PREFILL = next(e for e in EXAMPLES if e.op == "paged_prefill")
TEXT = PREFILL.model_dump_json()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        (b"\xff", "can't decode"),
        (TEXT[:-1] + ',"batch_size":1}', "the duplicate name 'batch_size'"),
        (TEXT.replace('"head_dim"', '"page_size":1,"head_dim"'), "the duplicate name 'page_size'"),
        (TEXT[:-1] + ',"more":' + "[" * 10_000 + "]" * 10_000 + "}", "nested more than 100 deep"),
        (TEXT[:-1] + f',"sm_scale":{"9" * 5000}}}', "more than 40 digits"),
        (TEXT[:-1] + ',"sm_scale":1e999}', "exceeds float64"),
        (TEXT[:-1] + ',"sm_scale":NaN}', "NaN"),
    ],
)
@pytest.mark.parametrize("read", [load_descriptor, type(PREFILL).model_validate_json], ids=["any", "its type"])
def test_json_that_is_not_strict_is_refused_with_the_reason(read, text, why):
    with pytest.raises(DescriptorError, match=why) as caught:
        read(text)
    assert caught.value.code == "OPF-D006"


@pytest.mark.parametrize("field", type(PREFILL).model_fields)
@pytest.mark.parametrize("value", [10**400, -(10**5000)], ids=["beyond float64", "beyond printing"])
def test_an_integer_of_any_length_is_refused_by_name(field, value):
    fields = dict(PREFILL.__dict__) | {field: value}
    with pytest.raises(DescriptorError, match=field):
        type(PREFILL)(**fields)


def test_an_integer_that_python_does_not_print_is_refused_everywhere():
    for refused in (lambda: Target("sm_90a", 10**5000), lambda: load_descriptor(10**5000), lambda: schema(10**5000)):
        with pytest.raises(DescriptorError, match="too long to print"):
            refused()


@pytest.mark.parametrize("change", [{"batch_size": "2"}, {"batch_size": 2.5}, {"window_left": 10**30}, {"unknown": 1}])
def test_json_is_as_strict_as_construction(change):
    text = json.dumps(json.loads(PREFILL.model_dump_json()) | change)
    with pytest.raises(DescriptorError, match=next(iter(change))):
        load_descriptor(text)


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: d.op)
def test_the_json_schema_names_every_field_and_closes_the_rest(descriptor):
    schema = type(descriptor).model_json_schema()
    assert set(schema["properties"]) == set(type(descriptor).model_fields)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["schema_version"]["const"] == 1
    assert json.loads(json.dumps(schema)) == schema


def test_every_op_has_its_own_name_and_type():
    assert len(descriptor_types()) == len({type(e) for e in EXAMPLES})
    assert all(kind.model_fields["op"].default == op for op, kind in descriptor_types().items())


@pytest.mark.parametrize("name", regolden.by_name())
def test_descriptors_and_skus_are_as_recorded(name):
    """A changed digest or id invalidates users' caches, pins and telemetry: rerun tests.support.regolden only on purpose."""
    recorded = json.loads((regolden.GOLDEN / f"{name}.json").read_text())
    now = regolden.golden(regolden.by_name()[name])
    assert load_descriptor(json.dumps(recorded["descriptor"])) == regolden.by_name()[name]
    assert now == recorded


def test_every_recorded_example_exists():
    assert {p.stem for p in regolden.GOLDEN.glob("*.json")} == set(regolden.by_name())


def test_digests_do_not_depend_on_the_hash_seed():
    code = "from opfacade.select.registry import examples; print(*[e.digest() for e in examples()])"
    outs = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert outs == {" ".join(e.digest() for e in EXAMPLES) + "\n"}


def drawn():
    random = [problems.random_descriptor(op, seed, tokens=600) for op in problems.OPS for seed in range(40)]
    return [*matrix.matrix().values(), *examples(), *random]


def test_lists_are_taken_where_tuples_are_at_every_depth():
    """Parsed JSON contains lists, never tuples."""
    found = drawn()
    assert any(type(value) is tuple for d in found for value in d.__dict__.values())
    for descriptor in found:
        kind = type(descriptor)
        assert kind.model_validate(json.loads(descriptor.canonical_json())) == descriptor
        fields = {name: list(value) if type(value) is tuple else value for name, value in descriptor.__dict__.items()}
        assert kind(**fields) == descriptor
    assert Input(name="x", dtype="f32", over=[1]) == Input(name="x", dtype="f32", over=(1,))
    assert Quant(scale="block", block=[32, 64]) == Quant(scale="block", block=(32, 64))
