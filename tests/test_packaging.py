"""The wheel contains the sources that are compiled on the user's machine; they are found in the wheel and in a checkout."""

import email
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.python_path import python_path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("kernels", "csrc")
SUFFIXES = {".cuh", ".h", ".jinja"}
BUILDER = "hatchling is not installed; scripts/env installs it"


def run(code, **env):
    variables = {name: value for name, value in os.environ.items() if name != "OPFACADE_SOURCE_ROOT"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=env.pop("cwd", "/"), env=variables | env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason=BUILDER)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    place = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(place)
    return place


def test_the_wheel_holds_every_source_that_is_compiled(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [path for top in SOURCES for path in (ROOT / top).rglob("*") if path.suffix in SUFFIXES]
    assert sources
    assert {f"opfacade/_src/{path.relative_to(ROOT)}" for path in sources} <= names


def test_the_wheel_holds_the_whole_package_its_types_and_its_licence(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "opfacade").rglob("*.py")} <= names
    assert "opfacade/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "bench", "kernels", "csrc")) for name in names)


def test_sources_are_found_from_the_wheel(unpacked):
    code = "import opfacade.jit as j; r = j.source_root(); print(j.__file__); print(r)"
    module, root = run(code, PYTHONPATH=python_path(unpacked)).splitlines()
    assert Path(module).is_relative_to(unpacked)
    assert Path(root) == unpacked / "opfacade" / "_src"
    assert all((Path(root) / top).is_dir() for top in SOURCES)


def test_sources_are_found_from_the_checkout():
    root = run("import opfacade.jit as j; print(j.source_root())", PYTHONPATH=python_path(ROOT))
    assert Path(root) == ROOT


def test_the_command_is_installed_with_the_wheel(wheel):
    (entry,) = (n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("entry_points.txt"))
    assert "opfacade = opfacade.cli.main:main" in zipfile.ZipFile(wheel).read(entry).decode()


RELATIVE = re.compile(r"\]\((?!https?://|#)[^)]*\)")


def described(wheel):
    (name,) = (n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".dist-info/METADATA"))
    return email.message_from_string(zipfile.ZipFile(wheel).read(name).decode())


def test_the_index_page_has_no_link_that_leads_nowhere(wheel):
    metadata = described(wheel)
    text = metadata.get_payload()
    assert "# opfacade" in text
    assert "quickstart (`docs/quickstart.md`)" in text or "/docs/quickstart.md)" in text
    assert not RELATIVE.findall(text)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.13"} <= set(metadata.get_all("Classifier"))
    assert "paged-attention" in metadata["Keywords"]


@pytest.fixture
def hook():
    pytest.importorskip("hatchling", reason=BUILDER)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Metadata


def test_links_and_addresses_follow_from_the_address_of_the_files(hook):
    metadata = {"version": "1.2.3"}
    hook(str(ROOT), {"files": "https://host.example/opfacade/blob/v{version}/"}).update(metadata)
    files = "https://host.example/opfacade/blob/v1.2.3/"
    text = metadata["readme"]["text"]
    assert f"[quickstart]({files}docs/quickstart.md)" in text
    assert not RELATIVE.findall(text)
    linked = re.findall(re.escape(files) + r"([^)#]+)", text)
    assert linked
    assert [path for path in linked if not (ROOT / path).is_file()] == []
    assert metadata["urls"] == {
        "Documentation": files + "docs/index.md",
        "Changelog": files + "CHANGELOG.md",
        "Source": files,
    }


def test_no_address_is_made_up(hook):
    metadata = {"version": "1.2.3"}
    hook(str(ROOT), {"files": ""}).update(metadata)
    assert metadata["urls"] == {}
    assert "https://" not in metadata["readme"]["text"]
