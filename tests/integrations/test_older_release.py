"""Releases of transformers that pass pages (5.17, 5.18): the adapter's tests run in a process with the release
in .venv/older.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.python_path import python_path

ROOT = Path(__file__).resolve().parents[2]
OLDER = Path(sys.prefix) / "older"
_NAMES = ("continuous_batching", "experts", "transformers", "transformers_call", "transformers_sampling", "use_ops")
FILES = [f"tests/integrations/test_{name}.py" for name in _NAMES]
# Compilation and bf16 do not depend on the release, nor do families that share another family's attention; these take most of
# the time. Windows, a latent cache, and the plain case remain.
CHOSEN = "not compiled and not bf16 and not qwen3 and not gemma2 and not gpt_oss and not deepseek_v2"


@pytest.mark.transformers
@pytest.mark.timeout(900)
def test_the_adapter_holds_with_the_last_release_that_passes_pages():
    if not OLDER.is_dir():
        pytest.skip(f"need transformers 5.18 in {OLDER}: run scripts/env")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["OMP_NUM_THREADS"] = "1"  # tensors are small, and another worker of pytest uses the other core
    env["PYTHONPATH"] = python_path(OLDER, ROOT)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rp", *FILES, "-k", CHOSEN]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    # This test passes only if the cache has pages: it shows which release was imported.
    assert "::test_a_model_without_pages_for_its_values_says_so[deepseek_v3]" in run.stdout
