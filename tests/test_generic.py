"""Generic modules are independent of operators: none names an op, an operand or a field of a family, or imports its modules."""

import ast
import re
from concurrent.futures import Executor
from dataclasses import fields

import pytest

from opfacade.core.candidate import Candidate
from opfacade.core.descriptor import Descriptor
from opfacade.core.model import Model
from opfacade.core.operands import TensorSpec
from opfacade.select.registry import descriptor_types, examples
from opfacade.testing.inputs import DrawnLengths
from tests.structure import OLDER_PATHS, PACKAGE, imports
from tests.structure import modules as package_modules

# Folders that belong to families.
FAMILIES = ("backends/", "compat/", "integrations/", "models/", "plans/", "recipes/", "testing/families/", "words")
# Names of torch, matplotlib, dataclasses and a level of validation that a family also uses.
FOREIGN = {"alpha", "gather", "indices", "query", "scatter", "slots"}
OF_PYTHON = {name for kind in (str, re.Match, Executor) for name in dir(kind)}
# Fields of every operand and candidate, and the module `in_place`.
CORE = {*TensorSpec._fields, *(field.name for kind in (Candidate, DrawnLengths) for field in fields(kind)), "in_place"}
FAMILY_MODULE = re.compile(r"opfacade\.(plans|testing\.families|backends\.\w+)\.\w")


def _models():
    """Descriptor types and the models in their fields."""
    for kind in descriptor_types().values():
        yield kind
        yield from (type(value) for e in examples() for _, value in e if isinstance(value, Model) and type(e) is kind)


def modules():
    names = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: path for name, path in names.items() if not name.startswith(FAMILIES)}


def defined(path):
    """Names of a module's functions, classes, parameters and fields, and its own."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.attr for target in node.targets if isinstance(target, ast.Attribute))


def general():
    """Names that generic modules may use although a family has them too: single words that the modules or Python define.

    A word with an underscore is never general, so a new family adds nothing here.
    """
    own = {name for path in modules().values() for name in defined(path)} | OF_PYTHON | FOREIGN
    return CORE | {name for name in own if "_" not in name}


def family_words():
    operands = {name for example in examples() for name in example.operands()}
    fields = {name for model in _models() for name in model.model_fields} - set(Descriptor.model_fields)
    return {word for word in (set(descriptor_types()) | operands | fields) - general() if len(word) > 1}


WORDS = family_words()


LONG = re.compile(r"\b(" + "|".join(sorted(word for word in WORDS if "_" in word)) + r")\b")


def named(path):
    """(line, word) of every attribute, keyword and string in code that is a family's word, or contains one with
    an underscore.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        word = node.attr if isinstance(node, ast.Attribute) else node.arg if isinstance(node, ast.keyword) else None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = LONG.search(node.value)
            word = found[0] if found else node.value
        if word in WORDS:
            yield node.lineno, word


@pytest.mark.parametrize("name", sorted(set(modules()) - {"core/elsewhere"}))  # the names in hints, as a table
def test_a_generic_module_names_nothing_of_a_family(name):
    assert list(named(modules()[name])) == []


def of_a_family(path):
    return sorted(name for name in imports(path, package_modules()) if FAMILY_MODULE.match(name))


@pytest.mark.parametrize("name", sorted(set(modules()) - set(OLDER_PATHS)))
def test_a_generic_module_imports_nothing_of_a_family(name):
    assert of_a_family(modules()[name]) == []


def test_the_words_are_those_of_families():
    assert {"paged_decode", "k_data", "kv_indptr", "states_lse", "kv_split", "page_size", "rope", "softmax"} <= WORDS


def test_a_word_is_general_where_a_generic_module_defines_it(tmp_path):
    path = tmp_path / "m.py"
    path.write_text("class A:\n    b: int\n    def c(self, d):\n        self.e, f = d, 1\n        self.g = f\n")
    assert sorted(defined(path)) == ["A", "b", "c", "d", "g", "m", "self"]
    assert {"steps", "split", "gather"} <= general()


def test_a_name_is_found(tmp_path):
    path = tmp_path / "m.py"
    path.write_text('def f(d, a):\n    if d.op == "merge_states":\n        return a.k_data\n    return g(kv_split=1)\n')
    assert sorted(named(path)) == [(2, "merge_states"), (3, "k_data"), (4, "kv_split")]


def test_an_import_is_found():
    path = PACKAGE / "testing/families/mla.py"  # imports are relative to the package, so a file of it
    assert "opfacade.plans.mla" in of_a_family(path)
    assert "opfacade.testing.families._problems" in of_a_family(path)


def test_the_backends_are_listed_in_one_module():
    def texts(node):
        return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}

    listed = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and {"cuda", "library"} <= texts(node)
    }
    assert listed == {"core/backends.py"}
