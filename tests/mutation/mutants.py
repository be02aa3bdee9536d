"""Planted faults: exact replacements in the sources, the tests that must see them, and nothing else.

A family may have faults next to its tests: each `tests/families/<family>/faults*.py` ends with FAULTS, and so does each file of
`tests/mutation/host`, which has faults in Python code that decides or judges.
"""

from importlib import import_module
from pathlib import Path

from tests.mutation.faults_bounds import BOUND_FAULTS
from tests.mutation.faults_compat import COMPAT_FAULTS
from tests.mutation.faults_cpu import CPU_FAULTS
from tests.mutation.faults_cpu_kernels import CPU_KERNEL_FAULTS
from tests.mutation.faults_decode import DECODE_FAULTS
from tests.mutation.faults_flashinfer import FLASHINFER_FAULTS
from tests.mutation.faults_fp8 import FP8_FAULTS
from tests.mutation.faults_hopper import HOPPER_FAULTS
from tests.mutation.faults_identity import IDENTITY_FAULTS
from tests.mutation.faults_indices import INDEX_FAULTS
from tests.mutation.faults_inputs import INPUT_FAULTS
from tests.mutation.faults_integrations import INTEGRATION_FAULTS
from tests.mutation.faults_language import LANGUAGE_FAULTS
from tests.mutation.faults_logging import LOGGING_FAULTS
from tests.mutation.faults_messages import MESSAGE_FAULTS
from tests.mutation.faults_operands import OPERAND_FAULTS
from tests.mutation.faults_pieces import PIECE_FAULTS
from tests.mutation.faults_poison import POISON_FAULTS
from tests.mutation.faults_prefill import PREFILL_FAULTS
from tests.mutation.faults_recipes import RECIPE_FAULTS
from tests.mutation.faults_records import RECORD_FAULTS
from tests.mutation.faults_shared import SHARED_FAULTS
from tests.mutation.faults_torch_ops import TORCH_OP_FAULTS
from tests.mutation.mutant import Mutant

_KERNELS = (*CPU_KERNEL_FAULTS, *HOPPER_FAULTS, *PIECE_FAULTS, *BOUND_FAULTS, *INDEX_FAULTS)
_FAMILIES = sorted((Path(__file__).parents[1] / "families").glob("*/faults*.py"))
_MODULES = [import_module(f"tests.families.{path.parent.name}.{path.stem}") for path in _FAMILIES]
_OF_FAMILIES = [fault for module in _MODULES for fault in module.FAULTS]
_WAYS_IN = (*TORCH_OP_FAULTS, *COMPAT_FAULTS, *FLASHINFER_FAULTS, *INTEGRATION_FAULTS)
_CORE = (
    *INPUT_FAULTS,
    *RECORD_FAULTS,
    *LOGGING_FAULTS,
    *MESSAGE_FAULTS,
    *OPERAND_FAULTS,
    *LANGUAGE_FAULTS,
    *IDENTITY_FAULTS,
    *RECIPE_FAULTS,
)
CPU = (*_OF_FAMILIES, *CPU_FAULTS, *_KERNELS, *_CORE, *_WAYS_IN)
_HOST = sorted((Path(__file__).parent / "host").glob("*.py"))
HOST = tuple(fault for path in _HOST for fault in import_module(f"tests.mutation.host.{path.stem}").FAULTS)
GPU = (*DECODE_FAULTS, *PREFILL_FAULTS, *FP8_FAULTS, *SHARED_FAULTS, *POISON_FAULTS)

__all__ = ["CPU", "GPU", "HOST", "Mutant"]
