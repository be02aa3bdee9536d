"""Each binding exports `run`, and `prepare`, which loads its kernels before a graph is captured."""

import re

import pytest

from opfacade.jit import source_root

ROOT = source_root()
# the host library, which loads bindings, and a test of instructions
NO_PLAN = ("csrc/host/host.cc.jinja", "csrc/probes/hopper.cc.jinja")
FILES = [str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cc.jinja") if path.name[0] != "_"]
BINDINGS = sorted(set(FILES) - set(NO_PLAN))
_PART = re.compile(r"""(?:include|extends) "(csrc/[^"]+)\"""")
_EXPORTED = re.compile(r"\bOPF_EXPORT_(RUN|PREPARE)\(|\bOPF_EXPORT\((run|prepare), ")


def exports(path):
    """The names that a template and the files that it includes export, each as often as it is exported."""
    text = (ROOT / path).read_text()
    own = [(short or name).lower() for short, name in _EXPORTED.findall(text)]
    return own + [name for part in _PART.findall(text) if part.endswith("jinja") for name in exports(part)]


@pytest.mark.parametrize("path", BINDINGS)
def test_a_binding_exports_run_and_prepare(path):
    assert sorted(exports(path)) == ["prepare", "run"]
