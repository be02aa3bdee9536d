"""Generic modules know no operator: none names an op, an operand or a field of a family. What is listed here stays so."""

import ast
import re

import pytest

from opfacade.core.descriptor import Descriptor
from opfacade.core.model import Model
from opfacade.select.registry import descriptor_types, examples
from tests.test_structure import PACKAGE

# What is a family's own, or on its way to become so: the list only shrinks.
FAMILIES = ("backends/", "compat/", "demo/", "integrations/", "plans/", "testing/families/")
NOT_YET = {
    "observe/call_pages", "observe/dumps", "testing/inputs", "validation/device", "validation/full", "validation/host",
    "validation/rules",
}  # fmt: skip
# Words that also name something general: a dtype, the layout of a tensor, a candidate's variant, the lengths q of requests, a
# call that overwrites its inputs.
GENERAL = {"op", "schema_version", "dtype", "layout", "variant", "q", "o", "k", "v", "query", "in_place"}


def _models():
    """Descriptor types and the models that their fields hold."""
    for kind in descriptor_types().values():
        yield kind
        yield from (type(value) for e in examples() for _, value in e if isinstance(value, Model) and type(e) is kind)


def family_words():
    operands = {name for example in examples() for name in example.operands()}
    fields = {name for model in _models() for name in model.model_fields} - set(Descriptor.model_fields)
    return (set(descriptor_types()) | operands | fields) - GENERAL


WORDS = family_words()


LONG = re.compile(r"\b(" + "|".join(sorted(word for word in WORDS if "_" in word)) + r")\b")


def named(path):
    """(line, word) of every attribute, keyword and text of code that is a word of a family, or has one with an underscore."""
    for node in ast.walk(ast.parse(path.read_text())):
        word = node.attr if isinstance(node, ast.Attribute) else node.arg if isinstance(node, ast.keyword) else None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = LONG.search(node.value)
            word = found[0] if found else node.value
        if word in WORDS:
            yield node.lineno, word


def modules():
    names = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: path for name, path in names.items() if not name.startswith(FAMILIES)}


@pytest.mark.parametrize("name", sorted(set(modules()) - NOT_YET))
def test_a_generic_module_names_nothing_of_a_family(name):
    assert list(named(modules()[name])) == []


def test_what_is_clean_is_not_excused():
    assert {name for name in NOT_YET if not list(named(modules()[name]))} == set()


def test_the_words_are_those_of_families():
    assert {"paged_decode", "k_data", "kv_indptr", "states_lse", "kv_split", "page_size", "num_states", "rope"} <= WORDS


def test_a_name_is_found(tmp_path):
    path = tmp_path / "m.py"
    path.write_text('def f(d, a):\n    if d.op == "merge_states":\n        return a.k_data\n    return g(kv_split=1)\n')
    assert sorted(named(path)) == [(2, "merge_states"), (3, "k_data"), (4, "kv_split")]
