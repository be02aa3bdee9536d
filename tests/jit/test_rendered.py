"""The rendered text of a template is cached to find binaries, and is trusted for nothing else."""

import json
import subprocess
import sys

import pytest

from opfacade import jit
from opfacade.jit import JitSpec, cache, codegen, rendered
from opfacade.jit.cache import upkeep
from tests.jit.conftest import TINY

LOAD = """
import sys
from opfacade import jit
from opfacade.jit import JitSpec
jit.build(JitSpec.of("tiny", "testing/tiny", "sm_80", value=42), allow_build=False)
print("jinja2" in sys.modules)
"""


def files():
    return sorted((cache.root() / rendered.FOLDER).glob("*.json"))


def lie(text):
    """Stores another text for TINY, with a right digest."""
    stored = json.loads(files()[0].read_text())
    stored["device"] = text
    stored["sha256"] = rendered._digest(stored["device"], stored["binding"])
    files()[0].write_text(json.dumps(stored))


def test_a_new_process_finds_a_binary_without_jinja2(toolkit):
    jit.build(TINY)
    told = subprocess.run([sys.executable, "-c", LOAD], check=True, capture_output=True, text=True).stdout
    assert told == "False\n"


def test_a_recalled_text_equals_the_rendered_text(root, cache_dir):
    first = rendered.sources(TINY)
    assert rendered._recall(TINY) == first == codegen.render(TINY)
    assert len(files()) == 1


@pytest.mark.parametrize("change", ["template", "params", "arch", "renderer"])
def test_every_input_of_a_text_is_in_the_path_of_its_cache_file(root, cache_dir, change, monkeypatch):
    rendered.sources(TINY)
    spec = TINY
    if change == "template":
        path = root / "csrc/testing/tiny.cu.jinja"
        path.write_text(path.read_text() + "// {{ value }}\n")
    elif change == "renderer":
        monkeypatch.setattr(rendered, "_renderer", lambda: ["another"])
    else:
        value, arch = (True, "sm_80") if change == "params" else (42, "sm_90a")
        spec = JitSpec.of("tiny", "testing/tiny", arch, value=value)
    assert rendered._recall(spec) is None
    assert rendered.sources(spec) == codegen.render(spec)
    assert len(files()) == 2


def test_headers_are_read_again(root, cache_dir):
    before = rendered.sources(TINY)
    path = root / "csrc/common/shared.h"
    path.write_text(path.read_text() + "// edited\n")
    recalled = rendered._recall(TINY)
    assert recalled == codegen.render(TINY)
    assert (recalled != before) is any(name == "csrc/common/shared.h" for name, _ in before.headers)


@pytest.mark.parametrize("harm", ["torn", "empty", "list", "altered", "writable by all", "link", "folder"])
def test_a_damaged_cached_text_is_rendered_again(root, cache_dir, harm, tmp_path):
    wanted, (path,) = rendered.sources(TINY), files()
    text = path.read_text()
    match harm:
        case "torn":
            path.write_text(text[: len(text) // 2])
        case "empty":
            path.write_text("")
        case "list":
            path.write_text("[1]")
        case "altered":
            path.write_text(text.replace("42", "43"))
        case "writable by all":
            path.chmod(0o666)
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "folder":
            path.unlink()
            path.mkdir()
    assert rendered._recall(TINY) is None
    assert rendered.sources(TINY) == wanted


def test_compilation_never_uses_a_cached_text(toolkit):
    wanted = codegen.render(TINY)
    rendered.sources(TINY)
    lie("#error remembered\n")
    built = jit.build(TINY)
    assert rendered._recall(TINY) == wanted
    assert jit.build(TINY, allow_build=False) == built == cache.valid(jit.key(TINY))
    assert len(toolkit.calls()) == 1


def test_a_wrong_cached_text_hides_no_binary(toolkit):
    built = jit.build(TINY)
    lie("// nothing\n")
    assert jit.build(TINY, allow_build=False) == built


@pytest.mark.parametrize(
    ("text", "remembered"),
    [('{%- include "csrc/testing/other.h" %}\n', 2), ("{% include 'csrc/testing/' ~ part ~ '.h' %}\n", 0)],
)
def test_a_template_is_cached_with_the_files_that_it_includes(root, cache_dir, text, remembered):
    """The cache also covers files that these files include. If the name of an included file is computed, the files
    are unknown."""
    (root / "csrc/testing/made.cu.jinja").write_text(text)
    (root / "csrc/testing/made.cc.jinja").write_text("")
    (root / "csrc/testing/other.h").write_text('{% include "csrc/testing/last.h" %}\n')
    spec = JitSpec.of("made", "testing/made", "sm_80", part="other")
    for line in ("int a;\n", "int b;\n"):
        (root / "csrc/testing/last.h").write_text(line)
        assert rendered.sources(spec).device == line == (rendered._recall(spec) or codegen.render(spec)).device
    assert len(files()) == remembered


def test_without_a_writable_cache_the_text_is_rendered(root, cache_dir, monkeypatch):
    monkeypatch.setattr(rendered, "write_private", _full)
    assert rendered.sources(TINY) == codegen.render(TINY)
    assert files() == []


def _full(*_):
    raise OSError(28, "No space left on device")


def test_clear_and_gc_remove_cached_texts(root, cache_dir):
    rendered.sources(TINY)
    upkeep.collect(cache.shared(), max_age=3600)
    assert len(files()) == 1
    upkeep.collect(cache.shared(), max_age=-1)
    assert files() == []
    rendered.sources(TINY)
    upkeep.clear(cache.shared())
    assert files() == []
