"""help, the JSON schema and the reference of plans describe every field and every tensor exactly once."""

import ast
import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import opfacade
import opfacade.plans
from opfacade import Plan, Preference, Require
from opfacade.core.refusals import _models
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.plans.collective import CollectiveDescriptor
from opfacade.select.registry import descriptor_types, families

TYPES = list(descriptor_types().values())


def with_models_inside(kinds):
    found = []
    for kind in kinds:
        if kind not in found:
            found.append(kind)
            inner = [model for field in kind.model_fields.values() for model in _models(field.annotation)]
            found += [model for model in with_models_inside([m for m in inner if m not in found]) if model not in found]
    return found


MODELS = with_models_inside([*TYPES, Preference, Require]) if TYPES else []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_described_in_a_sentence(model):
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name}"
        assert field.description.endswith("."), field.description


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_the_json_schema_contains_the_descriptions(kind):
    for name, entry in kind.model_json_schema()["properties"].items():
        assert entry["description"] == kind.model_fields[name].description


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_help_has_every_field_with_its_default_and_description(model):
    text = inspect.getdoc(model)
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"default {field.default!r}"
        assert re.search(rf"^    {name}: .+, {re.escape(f'{default}. {field.description}')}$", text, re.M), name
    assert text.count("Fields:") == 1
    assert "Fields:" not in str(model.model_json_schema().get("description"))


def test_help_states_types_in_python_notation():
    text = inspect.getdoc(BatchPagedDecodeDescriptor)
    assert text.startswith(BatchPagedDecodeDescriptor.__dict__["__doc__"].text.split("\n")[0])
    assert "\n    num_qo_heads: int, required. Number of query heads: a multiple" in text
    assert "\n    kv_scale: 'none' | 'tensor' | 'head', default 'none'. " in text
    assert "\n    paged_kv: PagedKvCacheDescriptor, required. " in text
    assert "\n    max_kv_len: int | None, default None. " in text
    assert "\n    counts: tuple[int, ...], required. " in inspect.getdoc(CollectiveDescriptor)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_tensor_of_a_call_is_described(kind):
    for field in dataclasses.fields(kind.args_type):
        assert f"\n    {field.name}: {kind.args_type.docs[field.name]}." in kind.args_type.__doc__
    assert kind.args_type.__doc__.count("Fields:") == 1


@pytest.mark.parametrize("family", families())
def test_a_family_exports_its_public_names(family):
    module = import_module(f"opfacade.plans.{family}")
    public = set(module.__all__)
    assert len(module.__all__) == len(public)
    for kind in (kind for kind in TYPES if kind.__module__ == module.__name__):
        assert {kind.__name__, kind.args_type.__name__, kind.__name__.replace("Descriptor", "Plan")} <= public
    plans = [
        value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Plan) and value is not Plan
    ]
    assert plans
    assert all(plan.__doc__ and plan.__name__ in public for plan in plans)
    assert f"{family}:" in str(opfacade.plans.__doc__)


def test_field_defaults_are_passed_by_keyword():
    """A type checker without pydantic support does not recognise a default without the keyword."""
    for path in (Path(opfacade.__file__).parent).rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        wrong = [call.lineno for call in calls if getattr(call.func, "id", "") == "Field" and call.args]
        assert wrong == [], path
