"""Generic modules know no operator: none names an op, an operand or a field of a family, or imports a module of one."""

import ast
import re
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
FAMILIES = ("backends/", "compat/", "demo/", "integrations/", "models/", "plans/", "recipes/", "testing/families/", "words")
# The core's own words, which a family may use too: fields of every operand and candidate, the module `in_place`, the lengths q
# of requests.
GENERAL = {*TensorSpec._fields, *(field.name for kind in (Candidate, DrawnLengths) for field in fields(kind)), "in_place"}
# Not words but single letters, and what a CUDA event is asked.
GENERAL |= {"o", "k", "v", "query"}
# Fields and the op of maps that are Python's and the core's own words: what a call reads and writes, `map` of an executor.
GENERAL |= {"inputs", "outputs", "map"}
# The names of gated activations: an input and an output, sizes, numbers, a program; what `make_args` and matplotlib also have.
GENERAL |= {"x", "out", "width", "limit", "alpha", "expression", "interleaved"}
# An operand of appends, and a slot of anything.
GENERAL |= {"slots"}
# How a table wraps a long cell, which is also the op of folds; a method of every text; a layout of page tables. They are
# fields of programs too.
GENERAL |= {"block", "fold", "split"}
# Words of Python, of click and of the language of programs, which norms, softmax and quantisation have as fields too; the
# nodes of a graph, which a tree of drafts has as well.
GENERAL |= {"kind", "x", "out", "log", "least", "most", "group", "groups", "axis", "nodes"}
# Operands and fields of sampling that are words of every program: a random seed, a CUDA stream, a sample of rows, a report.
GENERAL |= {"accepted", "form", "indices", "kind", "order", "report", "sample", "seed", "out", "stream", "token", "tokens", "x"}
# Sizes and operands of products that are words of every program: `add` of a set, `n` of a loop, a batch, a kind of weight.
GENERAL |= {"add", "batch", "beta", "n"}
# Operands of mixtures of experts: ids of anything, `loads` of json.
GENERAL |= {"ids", "loads"}
# A field and an operand of grouped products: `gather` of elements by index, `counts` of events.
GENERAL |= {"counts", "gather"}
# Words of groups of ranks; a picture of points, and the label of a curve.
GENERAL |= {"rank", "world", "scatter", "label"}
FAMILY_MODULE = re.compile(r"opfacade\.(plans|testing\.families|backends\.\w+)\.\w")


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


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_generic_module_names_nothing_of_a_family(name):
    assert list(named(modules()[name])) == []


def of_a_family(path):
    return sorted(name for name in imports(path, package_modules()) if FAMILY_MODULE.match(name))


@pytest.mark.parametrize("name", sorted(set(modules()) - set(OLDER_PATHS)))
def test_a_generic_module_imports_nothing_of_a_family(name):
    assert of_a_family(modules()[name]) == []


def test_the_words_are_those_of_families():
    assert {"paged_decode", "k_data", "kv_indptr", "states_lse", "kv_split", "page_size", "num_states", "rope"} <= WORDS


def test_a_name_is_found(tmp_path):
    path = tmp_path / "m.py"
    path.write_text('def f(d, a):\n    if d.op == "merge_states":\n        return a.k_data\n    return g(kv_split=1)\n')
    assert sorted(named(path)) == [(2, "merge_states"), (3, "k_data"), (4, "kv_split")]


def test_an_import_is_found():
    path = PACKAGE / "testing/families/mla.py"  # imports are relative to the package, so a file of it
    assert "opfacade.plans.mla" in of_a_family(path)
    assert "opfacade.testing.families._problems" in of_a_family(path)
