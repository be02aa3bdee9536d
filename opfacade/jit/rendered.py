"""Cache of rendered templates, so that the lookup of a binary in a new process neither imports nor runs jinja2.

It is only for lookups: a build renders again. The key of a text consists of the digests of its templates and of the templates
they include, their values, and the renderer; a template with a computed include is not cached. Without this cache, a lookup
takes a few milliseconds more.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import uuid
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from opfacade.base import strict_json
from opfacade.errors import CacheError, CacheSecurityError
from opfacade.jit import cache, codegen
from opfacade.jit.cache.files import make_private, read_private, write_private
from opfacade.jit.codegen import Sources
from opfacade.jit.spec import JitSpec, source_root

FOLDER = "rendered"
# Captures a quoted name that is not part of an expression; otherwise the group is empty.
_READS = re.compile(
    r"""{%[-+]?\s*(?:include|import|extends|from)\b(?:\s*['"]([^'"]+)['"]\s*(?=[-+]?%}|as\b|import\b|with|ignore\b))?"""
)


def sources(spec: JitSpec) -> Sources:
    """The sources of a spec for the lookup of its binary: from the cache, or rendered and cached."""
    return _recall(spec) or _remember(spec)


def refresh(spec: JitSpec) -> Sources:
    """The sources of a spec for a compilation: always rendered."""
    return _remember(spec)


def _recall(spec: JitSpec) -> Sources | None:
    try:
        stored = strict_json.loads(read_private(_place(spec)))
        device, binding = stored["device"], stored["binding"]
        intact = stored["sha256"] == _digest(device, binding)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, CacheSecurityError):
        return None
    return codegen.with_headers(device, binding, source_root()) if intact else None


def _remember(spec: JitSpec) -> Sources:
    made = codegen.render(spec)
    text = {"device": made.device, "binding": made.binding, "sha256": _digest(made.device, made.binding)}
    with suppress(OSError, ValueError, CacheError, CacheSecurityError):  # with a read-only cache, the text is rendered again
        place = _place(spec)
        make_private(place.parent)
        aside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
        write_private(aside, json.dumps(text).encode())
        aside.replace(place)
    return made


def _place(spec: JitSpec) -> Path:
    """The cache file of a spec's text. Raises ValueError if the text does not depend only on its templates."""
    store, texts = cache.shared(), _texts(codegen.templates(spec))
    store.require_private()
    fields = {
        "templates": [[path, hashlib.sha256(text.encode()).hexdigest()] for path, text in texts.items()],
        "params": spec.params,
        "arch": spec.arch,
        "renderer": _renderer(),
    }
    return store.root / FOLDER / f"{codegen.canonical_digest(fields)}.json"


def _texts(paths: tuple[str, ...]) -> dict[str, str]:
    """Templates and all templates that they include, by name, in order of first use."""
    texts: dict[str, str] = {}
    todo = list(paths)
    while todo:
        path = todo.pop(0)
        if path not in texts:
            texts[path] = (source_root() / path).read_text()
            todo += _READS.findall(texts[path])
    if "" in texts:
        raise ValueError("a template includes a template whose name is computed")
    return texts


@lru_cache(maxsize=1)
def _renderer() -> list[str]:
    return [hashlib.sha256(Path(codegen.__file__).read_bytes()).hexdigest(), importlib.metadata.version("jinja2")]


def _digest(device: str, binding: str) -> str:
    return hashlib.sha256(json.dumps([device, binding]).encode()).hexdigest()
