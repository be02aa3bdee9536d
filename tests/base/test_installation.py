"""The command that a message prints works for the installation that runs it."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from opfacade.base.installation import command, install_cuda

PIP = (sys.executable, "-m", "pip", "install")


class Installed:
    """A distribution as importlib.metadata describes it."""

    requires = (
        "torch>=2.11",
        'nvidia-cuda-nvcc>=13.3; extra == "cuda"',
        "nvidia-nvvm>=13.3 ; extra == 'cuda'",
        'x; extra == "test"',
    )

    def __init__(self, **origin):
        self.origin = json.dumps(origin) if origin else None

    def read_text(self, name):
        return self.origin if name == "direct_url.json" else None


def told(root, found):
    return tuple(shlex.split(command(root, found)))


def test_a_clone_is_installed_with_the_extra(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert told(tmp_path, None) == (*PIP, "-e", f"{tmp_path}[cuda]")
    assert "[cuda]" in install_cuda()


def test_a_wheel_is_named_where_it_lies(tmp_path):
    wheel = tmp_path / "opfacade-0.1.0-py3-none-any.whl"
    wheel.touch()
    assert told(tmp_path, Installed(url=wheel.as_uri(), archive_info={})) == (*PIP, f"opfacade[cuda] @ {wheel.as_uri()}")
    wheel.unlink()
    assert told(tmp_path, Installed(url=wheel.as_uri())) == (*PIP, "nvidia-cuda-nvcc>=13.3", "nvidia-nvvm>=13.3")


def test_an_index_is_asked_only_where_it_was_before(tmp_path):
    assert told(tmp_path, Installed()) == (*PIP, "opfacade[cuda]")
    assert "opfacade" not in " ".join(told(tmp_path, None)[4:])


def test_the_packages_are_those_of_the_extra():
    from pathlib import Path

    tomllib = pytest.importorskip("tomllib")

    from opfacade.base.installation import PACKAGES

    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert {name: list(packages) for name, packages in PACKAGES.items()} == {
        name: project["optional-dependencies"][name] for name in PACKAGES
    }


@pytest.mark.parametrize("words", ["doctor", "explain"])
def test_no_warning_about_numpy_where_there_is_none(words, tmp_path):
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from opfacade.cli.main import main\n"
        "import io; sys.stdin = io.TextIOWrapper(io.BytesIO(b'{}'))\n"
        f"main({[words, *(['-'] if words == 'explain' else [])]!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert "NumPy" not in done.stderr, done.stderr


def test_no_message_names_an_extra_by_itself():
    package = Path(__file__).resolve().parents[2] / "opfacade"
    named = [path.name for path in package.rglob("*.py") if re.search(r"pip install .?opfacade", path.read_text())]
    assert named == []
