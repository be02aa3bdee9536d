"""Importing and selecting in a new process: little time, no torch, no file."""

import subprocess
import sys
from importlib import import_module

import pytest

from tests.support.python_path import python_path
from tests.test_structure import ROOT


def fresh(code, **env):
    """stdout of a new process."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": python_path(ROOT)} | env, capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LIGHT = """
import sys, time
start = time.process_time()
import opfacade
spent = time.process_time() - start
heavy = [m for m in ("torch", "tvm_ffi", "pydantic", "numpy", "jinja2", "click", "rich", "ninja") if m in sys.modules]
print(spent, *heavy)
"""


def test_the_import_is_light():
    found = [fresh(LIGHT).split() for _ in range(3)]
    assert all(f[1:] == [] for f in found)
    assert min(float(f[0]) for f in found) <= 0.25


NAMES = """
import sys, time
start = time.process_time()
from opfacade import Preference, Target, explain, Plan, telemetry, load_descriptor
spent = time.process_time() - start
print(spent, *[m for m in ("torch", "tvm_ffi", "numpy", "jinja2", "click") if m in sys.modules])
"""


def test_the_public_names_load_without_torch():
    found = [fresh(NAMES).split() for _ in range(2)]
    assert all(f[1:] == [] for f in found)


EXPLAIN = """
import sys
from opfacade import Target, explain
from opfacade.plans.attention import EXAMPLES
text = str(explain(EXAMPLES[0], target=Target.parse("sm_90a")))
assert "cuda" in text and "reference" in text, text
EXAMPLES[0].digest(), EXAMPLES[0].model_dump_json(), EXAMPLES[0].operands()
print(*[m for m in ("torch", "tvm_ffi") if m in sys.modules])
"""


def test_descriptors_and_explain_need_neither_torch_nor_tvm_ffi():
    assert fresh(EXPLAIN) == ""


QUIET = """
import sys
wrote = []
def hook(event, args):
    if event == "open" and isinstance(args[2], int) and args[2] & 3:
        wrote.append(args[0])
    elif event in ("os.mkdir", "os.rename", "os.remove", "subprocess.Popen", "socket.connect", "os.putenv"):
        wrote.append((event, args))
sys.dont_write_bytecode = True
sys.addaudithook(hook)
import opfacade
from opfacade import Plan, Target, explain
from opfacade.plans.attention import EXAMPLES
for target in ("cpu", "sm_90a"):
    explain(EXAMPLES[0], target=Target.parse(target)), Plan.select(EXAMPLES[0], target=Target.parse(target))
print(wrote)
"""


@pytest.mark.parametrize(
    "env",
    [{}, {"HOME": "/proc/nowhere", "PATH": ""}, {"HOME": "/", "TMPDIR": "/proc/nowhere"}],
    ids=["none", "unwritable", "no temp"],
)
def test_import_and_select_write_nothing_and_need_no_home_or_path(env):
    assert fresh(QUIET, **env) == "[]"


def test_running_the_reference_needs_no_compiler():
    code = "from tests.support.problems import decode, run; d, a = run(decode([6])); print(bool(a.o.isnan().any()))"
    assert fresh(code, PATH="", HOME="/proc/nowhere") == "False"


def lists_its_names(path):
    return any(line.startswith("__all__") for line in path.read_text().splitlines())


LISTS = sorted(path.relative_to(ROOT) for path in (ROOT / "opfacade").rglob("*.py") if lists_its_names(path))


@pytest.mark.parametrize("path", LISTS, ids=str)
def test_a_module_has_each_name_that_it_lists_once(path):
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in ("vllm", "sglang", "transformers"):
            pytest.skip(f"needs {error.name}")
        raise
    names = [*module.__all__]
    assert len(names) == len(set(names)), [one for one in names if names.count(one) > 1]
    assert all(hasattr(module, one) for one in names), [one for one in names if not hasattr(module, one)]
