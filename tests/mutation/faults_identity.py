"""Faults in what an id says, in the table of dtypes, in requirements of an error model, and in the notes on a target."""

from tests.mutation.mutant import cpu

SKUS = "tests/core/test_sku.py"
CHOICES = "tests/select/test_selection.py"
MANIFESTS = "tests/select/test_manifest.py"
NOTES = "tests/select/test_target_notes.py"
DTYPES = "tests/families/test_toy_dtypes.py"
TABLE = "tests/core/test_sku.py tests/jit/test_operand_table.py"
VALUES = "tests/validation/test_values.py"
GUARANTEE, SELECTION = "opfacade/core/guarantee.py", "opfacade/select/selection.py"
TARGET_NOTES = "opfacade/select/target_notes.py"

IDENTITY_FAULTS = (
    cpu("sku: the wording of a condition is in the id", GUARANTEE, ', "conditions": {"__all__": {"text"}}', "", SKUS),
    cpu("sku: the evidence is in the id", GUARANTEE, '{"evidence": True, ', "{", SKUS),
    cpu("sku: a later field at its default is in the id", GUARANTEE, "exclude_defaults=True", "exclude_defaults=False", SKUS),
    cpu(
        "sku: an id of the older form passes",
        "opfacade/core/sku.py",
        "return _has_form(text, _PROMISE)",
        'return _has_form(text, "g")',
        f"{SKUS} {MANIFESTS}",
    ),
    cpu(
        "dtypes: bool has the code of u8",
        "opfacade/core/dtypes.py",
        'DTypeFacts(8, "bool", _BOOL)',
        'DTypeFacts(8, "bool", _UINT)',
        TABLE,
    ),
    cpu("dtypes: f8_e8m0 has the code of e5m2", "opfacade/core/dtypes.py", "10, 12, 14", "10, 12, 12", TABLE),
    cpu("dtypes: bool may carry a gradient", "opfacade/core/dtypes.py", "(_INT, _UINT, _BOOL)", "(_INT, _UINT)", SKUS),
    cpu(
        "require: a model of another family passes",
        SELECTION,
        "if wanted not in kind.error_models:",
        "if wanted not in kind.error_models:\n        return\n    if False:",
        CHOICES,
    ),
    cpu(
        "require: a looser model passes",
        SELECTION,
        "kind.error_models.index(stated) > kind.error_models.index(wanted)",
        "kind.error_models.index(stated) < kind.error_models.index(wanted)",
        CHOICES,
    ),
    cpu(
        "require: a copy satisfies no requirement of others",
        SELECTION,
        "if wanted is None or stated == EXACT:",
        "if wanted is None:",
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
        "values: a large uint64 is negative",
        "opfacade/validation/values.py",
        "values.masked_fill(values < 0, INT64_MAX)",
        "values",
        VALUES,
    ),
    cpu(
        "target: a kernel behind the chosen one is told",
        TARGET_NOTES,
        "if all(reason.code == COMPILER_TOO_OLD for reason in o.reasons)), None)",
        "if o.reasons and all(reason.code == COMPILER_TOO_OLD for reason in o.reasons)), None)",
        NOTES,
    ),
    cpu(
        "target: the last measured architecture is told too",
        TARGET_NOTES,
        "target.sm_version > NEWEST_TUNED",
        "target.sm_version >= NEWEST_TUNED",
        NOTES,
    ),
    cpu(
        "target: freeze tells nothing",
        "opfacade/select/manifest.py",
        "    target_notes.warn(checked.op, target, options)\n",
        "",
        NOTES,
    ),
)
