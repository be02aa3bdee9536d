"""Each constant of a fold strategy is defined in one file. A changed constant reaches the host, the kernel and its binding, and
the results stay right; no other source contains a copy of the constant."""

import re
from pathlib import Path

import pytest

import opfacade
from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.folds.strategies import columns, flat, general, scaled, split, spread
from opfacade.backends.cuda.folds.strategies import ragged as ragged_numbers
from opfacade.backends.cuda.folds.strategies import rows as numbers_of_rows
from opfacade.jit import codegen
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.quantize.test_tensor_scale import norm
from tests.families.reduction import test_ragged as ragged
from tests.families.reduction.forms import reducer, rms, softmax
from tests.families.reduction.test_fold_kernel import filled
from tests.families.reduction.test_general import GENERAL
from tests.families.reduction.test_split import auto

SHORT = ragged.reducer("sum")  # also used with long rows
ROOT = Path(opfacade.__file__).parents[1]
FILES = (columns, flat, general, numbers_of_rows, ragged_numbers, scaled, split, spread)
SCALED = norm("f32", 40, total_num_rows=300)
# (file, name of the constant, another value, problem, text of the device source, text of the binding); {} is the constant.
NUMBERS = {
    "columns": (columns, "THREADS", 128, softmax((301, 16), "f32", 0), ("kThreads = {},", "({}, 1)"), (", {})",)),
    "split": (split, "THREADS", 256, auto(reducer("sum", "f32", (2, 70001))), ("kThreads = {},", "({}, 1)"), (", {})",)),
    "merge": (
        split,
        "MERGE_WARPS",
        2,
        auto(reducer("sum", "f32", (5, 70002))),
        ("kMergeWarps = {};",),
        ("ceil_div(p.rows, {})",),
    ),
    "general": (general, "WARPS", 4, GENERAL["few_groups"], ("kWarps = {};",), ("(kPlaceStates + {})",)),
    "general by warps": (general, "WARPS", 2, GENERAL["row_after_groups"], ("kWarps = {};",), ("(kPlaceStates + {})",)),
    "ragged": (ragged_numbers, "WARPS", 4, SHORT, ("kWarps = {},",), (", {}, p.each)",)),
    "ragged, short": (ragged_numbers, "SHORT_ROW", 100, SHORT, ("kShortRow = {};",), ()),
    "ragged, rows of a warp": (ragged_numbers, "GROUP_ROWS", 2, SHORT, ("kGroupRows = {},",), ()),
    "ragged, batch of a warp": (ragged_numbers, "GROUP_BATCH", 2, SHORT, ("kGroupBatch = {};",), ()),
    "scaled": (scaled, "THREADS", 64, SCALED, ("kScaleThreads = {},", "({}, 1)"), (", {})",)),
    "scaled, CTAs": (scaled, "CTAS", 2, SCALED, ("kScaleCtas = {};",), (".cluster({})",)),
    "rows": (numbers_of_rows, "MAX_PARTS", 8, softmax((2, 70003)), ("kMaxParts = {},",), ()),
    "flat": (flat, "LEAST_BYTES", 0, rms((43, 56), "f16"), ("FlatFold",), ("kFlatSize[0] >= {} ",)),
    "flat, bytes": (flat, "BYTES_OF_CTA", 512, rms((44, 56), "f16"), ("FlatFold",), (", {}, 12,",)),
    "spread": (spread, "THREADS", 32, softmax((3, 70001)), ("kSpreadThreads = {};", "({}, 4)"), (", {})",)),
    "spread, loads": (spread, "VECTORS_AT_ONCE", 8, softmax((3, 70001)), ("kFar = {};",), ()),
    "ragged, elements": (ragged_numbers, "ELEMENTS_OF_CTA", 500, SHORT, (), (", {});",)),
}


def rendered(problem):
    plan = Plan.select(problem, Preference(backend="cuda"), Target.parse("sm_90a"))
    return codegen.render(plan.jit_spec)


def drawn(problem):
    if problem.op != "fold":
        return inputs.make_args(problem, 3)
    return ragged.drawn(problem, 3) if problem.ragged else filled(problem, 3)


@pytest.fixture(params=NUMBERS)
def case(request):
    return NUMBERS[request.param]


def test_a_changed_constant_reaches_the_kernel_and_its_binding(case, monkeypatch):
    file, name, other, problem, device, binding = case
    for value in (getattr(file, name), other):
        monkeypatch.setattr(file, name, value)
        found = rendered(problem)
        assert all(text.format(value) in found.device for text in device)
        assert all(text.format(value) in found.binding for text in binding)


@emulator.needed
def test_results_are_right_with_a_changed_constant(case, monkeypatch):
    file, name, other, problem, *_ = case
    monkeypatch.setattr(file, name, other)
    subject, args = emulator.subject(problem), drawn(problem)
    before = numerics.snapshot(problem, args)
    subject.run(args)
    assert numerics.check(problem, args, subject.plan.sku, before=before).worst <= 1


def test_the_shared_memory_of_columns_depends_on_the_number_of_threads(monkeypatch):
    problem = softmax((302, 16), "f32", 0)
    found = [re.search(r"kShared = (\d+)", rendered(problem).device)[1]]
    monkeypatch.setattr(columns, "THREADS", 128)
    found.append(re.search(r"kShared = (\d+)", rendered(problem).device)[1])
    # 8-byte entries: 8 columns x (8 warps + 1 cluster entry); 4 columns x (4 warps + 1 cluster entry)
    assert found == ["576", "160"]


DEVICE_COMMENT = re.compile(r"//[^\n]*|{#.*?#}", re.DOTALL)
PYTHON_COMMENT = re.compile(r"#[^\n]*|\"\"\".*?\"\"\"", re.DOTALL)
SIZED = re.compile(
    r"k\w*(?:Threads|Warps|Parts|Slots) = \d+\b(?! \*)|(?:Launch|launch_bounds__|shared)\([^;{]*?\b(?!(?:0|1|32)\b)\d+\b"
)
# Uses of the same number with another meaning.
FOLDS = "opfacade/backends/cuda/folds"
OTHERS = {
    ("kernels/reduction/reducers.cuh", "64"): "bits",
    (f"{FOLDS}/config.py", "64"): "lanes of two warps",
    (f"{FOLDS}/config.py", "100"): "an architecture",
    (f"{FOLDS}/scatter.py", "1024"): "elements of a row that one warp has",
    (f"{FOLDS}/scatter.py", "512"): "the same, of wider elements",
    (f"{FOLDS}/printer.py", "1024"): "entries of a cache",
    (f"{FOLDS}/level_program.py", "1024"): "entries of a cache",
}


def numbers():
    """The constants of all strategies that are at least 64, and so rarely equal an unrelated number."""
    found = [value for file in FILES for value in vars(file).values() if not isinstance(value, str)]
    flat_ones = [one for value in found for one in (value if isinstance(value, tuple) else (value,))]
    return {str(one) for one in flat_ones if isinstance(one, int) and one >= 64}


def copies(text, suffix):
    """The constants of strategies that a source contains, and the launch sizes in device code that do not come from
    a strategy."""
    comment, sized = (PYTHON_COMMENT, ()) if suffix == ".py" else (DEVICE_COMMENT, SIZED.findall(DEVICE_COMMENT.sub("", text)))
    return [*(one for one in re.findall(r"(?<![\w.])\d+(?!\w)", comment.sub("", text)) if one in numbers()), *sized]


def test_no_other_source_of_folds_contains_a_constant_of_a_strategy():
    paths = [p for at in ("kernels/reduction", "csrc/reduction") for p in (ROOT / at).rglob("*") if p.is_file()]
    paths += (ROOT / FOLDS).glob("*.py")
    found = {(p.relative_to(ROOT).as_posix(), one) for p in paths for one in copies(p.read_text(), p.suffix)}
    assert found == set(OTHERS)


@pytest.mark.parametrize(
    "text",
    [
        "constexpr int kRows = 256;",
        "const Launch launch = Launch(p.rows, 96);",
        "__launch_bounds__(96, 1)",
        ".shared({{ slots }} * kStateBytes).shared(48)",
        "static constexpr int kMergeWarps = 4;",
    ],
)
def test_a_copied_constant_is_found(text):
    assert copies(text, ".cuh")
    assert not copies("// " + text, ".cuh")


def test_a_copied_constant_is_found_in_python():
    assert copies("_THREADS = 256  # per CTA", ".py") == ["256"]
    assert copies("n // threads  # 256", ".py") == []
