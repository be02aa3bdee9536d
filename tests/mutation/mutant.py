"""A planted fault, and the names that lists of faults share: kinds of the matrix, files, tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault: (old, new) texts, each once in `file`; what to run; kinds of the matrix that a GPU run needs.

    `blind` states why no test here is expected to see it: such a fault is counted and reported as missed.
    """

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    kinds: str = ""
    tests: str = "tests/mutation/focus.py"
    blind: str = ""


SPLIT_DECODE = "decode-auto decode-even decode-cluster decode-fixed-wide-group-block decode-fixed-odd-window-block"
DECODE = f"{SPLIT_DECODE} decode-off-odd-window-cap"
PREFILL = "prefill-off-causal prefill-fixed-odd-window-cap-block prefill-auto-causal"
FP8_PREFILL = "prefill-off-fp8-head prefill-fixed-fp8-d256-sinks-cap ragged-auto-fp8"
UNEVEN = "ragged-off-uneven ragged-fixed-uneven-window-cap-sinks"
FP8_PRODUCTS = (
    "prefill-off-fp8-products prefill-off-fp8-products-full prefill-fixed-fp8-products-window-sinks ragged-auto-fp8-products"
)
F32 = "decode-auto-f32 decode-fixed-f32"
APPEND = "append-csr append-block-odd append-f32-odd"
MERGE = "merge-bf16 merge-odd"
LATENT = "mla-auto mla-fixed-wide-block mla-off-odd-window-cap-sinks mla-rows"
K = "kernels/attention"
C = "kernels/common"
L = "kernels/mla"
VARIED = "prefill-off-everything-varied prefill-auto-alibi ragged-off-documents-masked ragged-fixed-mask"
R = "opfacade/backends/reference"
CUDA = "opfacade/backends/cuda"
ON_CPU = "tests/families/attention/test_reference.py tests/mutation/focus.py"
REST = "tests/families/kv_cache tests/families/cascade tests/mutation/focus.py"
SCHEDULE = "tests/testing/test_structural_schedule.py"
TOY = "tests/families/test_toy.py"
CALLS = "tests/core/test_can_implement.py"
EMULATED = "tests/emulator/test_emulated_mla.py"
EMULATED_ROWS = "tests/emulator/test_emulated_mla_rows.py"
QUICK = "tests/jit/host/test_quick.py tests/jit/host/test_quick_launches.py tests/jit/host/test_quick_plans.py"
HOST = "tests/jit/host/test_host.py"
PIECES = "tests/families/attention/test_pieces.py"
DEALT = "tests/emulator/test_pieces.py"
TEAMS = "tests/emulator/test_teams.py"
WGMMA = "tests/emulator/test_emulated_wgmma.py"
CUT = "tests/emulator/test_prefill_pieces.py"
CUT_LINE = "tests/families/attention/test_wgmma_schedule.py"
CUT_CHOICE = "tests/families/attention/test_prefill_cut.py"
WGMMA_FP8 = "tests/emulator/test_emulated_fp8.py"


def gpu(name, file, old, new, kinds, **more):
    return Mutant(name, file, ((old, new),), kinds, **more)


def cpu(name, file, old, new, tests=ON_CPU, **more):
    return Mutant(
        name,
        file,
        ((old, new),),
        more.pop("kinds", "decode-fixed-odd-window-block prefill-fixed-odd-window-cap-block"),
        tests,
        **more,
    )


def host(name, file, old, new, tests, **more):
    """A fault in Python code that decides or judges. tests: the few files, or -k and words, that must catch it in seconds."""
    return Mutant(name, f"opfacade/{file}", ((old, new),), "", tests, **more)
