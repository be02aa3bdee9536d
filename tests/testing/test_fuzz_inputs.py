"""External input, corrupted at random: JSON of every reader and values of every model.

A right answer or an OpfacadeError, never another exception. Seeded, so that a failure repeats.
"""

import contextlib
import json
import random

import pytest

from opfacade import Plan, Preference, SkuManifest, Target, load_descriptor
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.preference import Require
from opfacade.core.sku import KernelSku
from opfacade.errors import OpfacadeError
from opfacade.plans._attention.variant import Variant
from opfacade.plans._attention.variant_examples import alibi
from opfacade.select.decision import TuningRow
from opfacade.select.measurement_store import export, parse, sound
from opfacade.select.registry import examples
from opfacade.telemetry.file import read as read_counts
from opfacade.tools.workload import Work
from opfacade.tools.workload import read as read_works
from tests.select.test_measurement_store import row
from tests.support.fuzzing import VALUES

DECODE = next(e for e in examples() if e.op == "paged_decode")
SKU = Plan.select(DECODE, Preference(backend="reference"), Target.cpu()).sku
LINE = Work(DECODE, Preference(require="deterministic"), 3).line(
    Plan.select(DECODE, Preference(backend="reference"), Target.cpu())
)
COUNTS = '{"pid": 1, "since": 2, "skus": {"x": {"runs": 1, "latency": {"samples": 1, "sum_us": 2.0, "counts": [1]}}},'
READERS = {
    "descriptor": (load_descriptor, DECODE.model_dump_json()),
    "preference": (Preference.model_validate_json, Preference(require="deterministic", forbid=("cuda",)).model_dump_json()),
    "variant": (Variant.model_validate_json, alibi(4).model_dump_json()),
    "sku": (KernelSku.model_validate_json, SKU.model_dump_json()),
    "manifest": (SkuManifest.model_validate_json, SkuManifest(skus=(SKU.id,)).model_dump_json()),
    "workload": (read_works, f"{LINE}\n{DECODE.model_dump_json()}"),
    "workload array": (read_works, f"[{LINE}, {DECODE.model_dump_json()}]"),
    "tuned table": (parse, export([row("a"), row("b")])),
    "tuned row": (sound, row().model_dump_json()),
}
NUMBERS = ("9" * 5000, "-" + "9" * 400, "1e999", "NaN", "-Infinity", "1e-400", "0x1", "01", "-0", "1" * 20, "0." + "3" * 400)
TEXTS = (
    '"\\ud800"',
    '"' + "x" * 3000 + '"',
    '"\\u0000"',
    '"a\\nb"',
    "[" * 3000,
    "[" * 3000 + "]" * 3000,
    '{"a":' * 500,
    "null",
    "{}",
    "[]",
)


def spoiled(rng, text):
    """A JSON text with an element that a careless or hostile writer might insert; as str or bytes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        what = rng.random()
        if what < 0.2:
            text = text[:at] + text[at + rng.randrange(1, 9) :]
        elif what < 0.35:
            text = text[:at] + rng.choice('{}[]",:0-eE\\\x00é\ud800\u2028\n ') + text[at:]
        elif what < 0.5 and '":' in text:  # another value
            at = text.index('":', min(at, text.rindex('":'))) + 2
            text = text[:at] + rng.choice((*NUMBERS, *TEXTS)) + rng.choice(("", ", ", '"')) + text[at + rng.randrange(4) :]
        elif what < 0.8 and '":' in text and "{" in text:  # a repeated name, or a name from another position
            end = text.index('":', min(at, text.rindex('":')))
            name = text[text.rindex('"', 0, end) : end]
            at = text.index("{", min(at, text.rindex("{"))) + 1
            text = f'{text[:at]}{name}": {rng.choice((*NUMBERS, *TEXTS, "1"))}, {text[at:]}'
        else:
            text = text[at:] + text[:at]
    return text.encode(errors="surrogatepass") if rng.random() < 0.3 else text


def refusal(call, *args):
    """The error that a call raises, or None if it returns. Any other exception is a finding."""
    try:
        call(*args)
    except OpfacadeError as error:
        return error
    return None


@pytest.mark.parametrize("name", READERS)
def test_json_of_every_reader(name):
    read, text = READERS[name]
    read(text)
    refused = 0
    for seed in range(300):
        error = refusal(read, spoiled(random.Random(seed), text))
        refused += error is not None
        assert error is None or (error.code in str(error) and len(str(error)) < 2000)
    assert refused > 200 or name == "tuned row"  # which is ignored


def test_counts_in_a_file(tmp_path):
    line = f'{COUNTS} "refusals": {{"OPF-S001": 1}}, "counts": {{"a": 2}}}}'
    for seed in range(300):
        text = spoiled(random.Random(seed), line)
        (tmp_path / "t").write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
        total, broken = read_counts(tmp_path / "t")
        assert broken or total["counts"] or total == {"skus": {}, "refusals": {}, "counts": {}}
        json.dumps(total, allow_nan=False)


ODD = (*VALUES, 10**400, -(10**5000), "\ud800", [[[]]], {"a": {"b": []}}, ("x",) * 9, object, 1 << 63, frozenset("x"))
MODELS = (Preference, Require, SkuManifest, PrecisionGuarantee, TuningRow, Variant, *dict.fromkeys(type(e) for e in examples()))


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_values_of_every_model(kind):
    sound_one = next((dict(e.__dict__) for e in examples() if type(e) is kind), {})
    for seed in range(150):
        rng = random.Random(seed)
        names = rng.sample([*kind.model_fields, "stranger"], min(len(kind.model_fields), rng.randrange(1, 4)))
        fields = sound_one | {name: rng.choice(ODD) for name in names}
        for make in (lambda fields=fields: kind(**fields), lambda fields=fields: kind.model_validate(fields)):
            with contextlib.suppress(OpfacadeError):
                json.loads(make().canonical_json())
