"""Faults in the content of an id, the table of dtypes, the requirements of an error model, and the notes on a target."""

from tests.mutation.mutant import cpu

SKUS = "tests/core/test_sku.py"
CHOICES = "tests/select/test_selection.py"
MANIFESTS = "tests/select/test_manifest.py"
NOTES = "tests/select/test_target_notes.py"
DTYPES = "tests/families/test_toy_dtypes.py"
SELECTION = "opfacade/select/selection.py"
TARGET_NOTES = "opfacade/select/target_notes.py"

IDENTITY_FAULTS = (
    cpu(
        "sku: an id of the older form passes",
        "opfacade/core/sku.py",
        "return _has_form(text, _PROMISE)",
        'return _has_form(text, "g")',
        f"{SKUS} {MANIFESTS}",
    ),
    cpu(
        "require: a model of another family passes",
        SELECTION,
        "if wanted not in kind.error_models:",
        "if wanted not in kind.error_models:\n        return\n    if False:",
        CHOICES,
    ),
    cpu(
        "bound: integers are compared in fp64",
        "opfacade/testing/bounds.py",
        "wrong = bits(got) != bits(want)",
        "wrong = got.double() != want.double()",
        DTYPES,
    ),
    cpu("bits: outputs of integers are not spoiled", "opfacade/testing/bits.py", ".fill_(-1)", ".add_(0)", DTYPES),
    cpu(
        "target: a kernel behind the chosen one is told",
        TARGET_NOTES,
        "                yield from _of_compiler(op, target, option)\n            return\n",
        "                yield from _of_compiler(op, target, option)\n",
        NOTES,
    ),
)
