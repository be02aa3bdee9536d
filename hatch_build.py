"""Metadata of the package that depend on where the repository is published: links of its long description, and its addresses.

`files` in pyproject.toml, [tool.hatch.metadata.hooks.custom], is the address below which a reader finds the files of this
version, such as `https://host.example/opfacade/blob/v{version}/`. While it is empty, the description names files of the source
distribution instead of linking to them, and the package has no addresses.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#]+)(#[^)]*)?\)")
PAGES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Source": ""}


def described(text: str, files: str) -> str:
    """The README for a page of an index, where relative links lead nowhere."""

    def link(found: re.Match[str]) -> str:
        name, path, heading = found.groups(default="")
        if files:
            return f"[{name}]({files}{path}{heading})"
        return name if name == path else f"{name} (`{path}`)"

    return LINK.sub(link, text)


class Metadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        files = self.config.get("files", "").format(version=metadata["version"])
        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, files)}
        metadata["urls"] = {name: files + path for name, path in PAGES.items()} if files else {}
