"""A source root of test templates beside the real headers, and a cache of the test's own."""

import shutil
from pathlib import Path

import pytest

from opfacade.jit import JitSpec

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A source root that a test may edit: csrc/common of the repository and the templates of tests/jit/templates."""
    place = tmp_path / "root"
    shutil.copytree(REPO / "tests/jit/templates", place)
    shutil.copytree(REPO / "csrc/common", place / "csrc/common")
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(place))
    return place


@pytest.fixture
def cache_dir(tmp_path, monkeypatch):
    place = tmp_path / "cache"
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(place))
    return place


@pytest.fixture
def scale(root, cache_dir):
    """A spec whose rendering, building and loading are all real."""
    return JitSpec.of("scale", "testing/scale", "sm_90a", threads=256)


@pytest.fixture
def tiny(root, cache_dir):
    """A spec whose binding is C, so that a build takes under a second."""
    (root / "csrc/testing/tiny.cu.jinja").write_text('#include "kernels/testing/scale_params.h"\n')
    (root / "csrc/testing/tiny.cc.jinja").write_text('extern "C" int answer() { return {{ value }}; }\n')
    return JitSpec.of("tiny", "testing/tiny", "sm_80", value=42)
