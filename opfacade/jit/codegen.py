"""Renders a spec: the device and host source, and all our headers that they include."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opfacade.errors import TemplateError
from opfacade.jit import options
from opfacade.jit.spec import JitSpec, source_root

if TYPE_CHECKING:
    import jinja2

# Our headers are included from the root, so that one regular expression matches all of them (system headers use <>).
_OWN_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"((?:kernels|csrc)/[^"\n]+)"', re.MULTILINE)
# The build includes this before a device source instead of cuda_runtime.h.
DEVICE_HEADER = "kernels/common/device.cuh"
_WHOLE_RUNTIME = re.compile(r"^// needs: cuda_runtime\.h$", re.MULTILINE)
# Strings and characters are matched too, so that apparent comments inside them are kept.
_COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""", re.DOTALL)
_SAFE_PATH = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.(h|cuh|hpp|inc)")


@dataclass(frozen=True)
class Sources:
    """All our sources of a binary.

    headers: pairs (path relative to the root, bytes), sorted by path. device: empty for a library without device code.
    """

    device: str
    binding: str
    headers: tuple[tuple[str, bytes], ...]

    @property
    def lean(self) -> bool:
        """Whether the device source is compiled only with DEVICE_HEADER instead of all of cuda_runtime.h."""
        return any(path == DEVICE_HEADER for path, _ in self.headers)

    @cached_property
    def device_text(self) -> str:
        """The device source with all headers, which may contain lines such as `// requires:` and `// allows:`."""
        return "\n".join([self.device, *(data.decode() for _, data in self.headers)])

    @property
    def code(self) -> Sources:
        """The sources without comments, indentation and empty lines."""
        headers = tuple((path, _code(data.decode()).encode()) for path, data in self.headers)
        return Sources(_code(self.device), _code(self.binding), headers)

    def digests(self) -> dict[str, Any]:
        """The sources as labelled digests, for a key."""
        return {
            "device": _sha256(self.device.encode()),
            "binding": _sha256(self.binding.encode()),
            "headers": [[path, _sha256(data)] for path, data in self.headers],
        }


def render(spec: JitSpec, root: Path | None = None) -> Sources:
    """Render `csrc/<template>.cu.jinja` and `.cc.jinja` and read their headers. Raises TemplateError with the location of an
    error."""
    root = root or source_root()
    *device, binding = (_render(spec, root, path) for path in templates(spec))
    return with_headers("".join(device), binding, root)


def templates(spec: JitSpec) -> tuple[str, ...]:
    """Paths of the device source, if there is one, and of the binding, relative to the root."""
    binding = f"csrc/{spec.template}.cc.jinja"
    return (f"csrc/{spec.template}.cu.jinja", binding) if spec.has_device_code else (binding,)


def with_headers(device: str, binding: str, root: Path) -> Sources:
    """Rendered sources with all our headers that they include. Raises TemplateError if a header is missing."""
    texts = {"device source": device, "binding source": binding}
    if device and (root / DEVICE_HEADER).is_file() and not _WHOLE_RUNTIME.search(device):
        texts["build"] = f'#include "{DEVICE_HEADER}"'
    return Sources(device, binding, _own_headers(root, texts))


def source_digest(spec: JitSpec, sources: Sources) -> str:
    """Digest of our inputs of a binary: sources, flags, arch. Two binaries by the same compiler differ exactly if this digest
    differs."""
    extra = [list(options.device()), list(options.host())]
    own = {"options": extra} if any(extra) else {}  # a debug build must have another digest
    return canonical_digest({**sources.digests(), "arch": spec.arch, "flags": list(spec.flags), **own})


def _code(text: str) -> str:
    kept = _COMMENT.sub(lambda found: found[1] or " ", text)
    return "\n".join(line for line in (line.strip() for line in kept.split("\n")) if line)


def canonical_digest(fields: dict[str, Any]) -> str:
    """SHA-256 over canonical JSON: because of labels and quotes, text cannot move between fields without changing the
    digest."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return _sha256(text.encode())


def cpp(value: object) -> Any:
    """A value as a C++ literal: true/false, exact hexadecimal floats (of type double), all other values unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.hex() if isinstance(value, float) else value


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=8)
def _environment(root: Path) -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(root)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=cpp,  # so that {{ causal }} can never print Python's True
    )
    environment.filters["cpp"] = cpp
    environment.filters["printed"] = lambda params, path: environment.get_template(path).render(dict(params))
    return environment


def _render(spec: JitSpec, root: Path, path: str) -> str:
    import jinja2

    try:
        return _environment(root).get_template(path).render(dict(spec.params), arch=spec.arch)
    except jinja2.TemplateNotFound as error:
        raise TemplateError(f"{spec.name}: no template {error.name} under {root}. [OPF-J003]") from error
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"{spec.name}: {error.name}:{error.lineno}: {error.message}. [OPF-J003]") from error
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise TemplateError(f"{spec.name}: {path} cannot be rendered: {error}. [OPF-J003]") from error


def _own_headers(root: Path, texts: dict[str, str]) -> tuple[tuple[str, bytes], ...]:
    found: dict[str, bytes] = {}
    todo = [(path, origin) for origin, text in texts.items() for path in _OWN_INCLUDE.findall(text)]
    while todo:
        path, origin = todo.pop()
        if path in found:
            continue
        found[path] = _read(root, path, origin)
        todo += [(inner, path) for inner in _OWN_INCLUDE.findall(found[path].decode())]
    return tuple(sorted(found.items()))


def _read(root: Path, path: str, origin: str) -> bytes:
    if not _SAFE_PATH.fullmatch(path):
        raise TemplateError(f"{origin} includes {path!r}, which is not a plain path from the root. [OPF-J003]")
    try:
        return (root / path).read_bytes()
    except OSError as error:
        raise TemplateError(f"{origin} includes {path}, which is not under {root}. [OPF-J003]") from error
