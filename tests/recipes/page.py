"""docs/ops/recipes.md: which operators have a recipe, and why others have none. `--check` only compares."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from opfacade import recipes
from opfacade.recipes import lax
from opfacade.recipes.waiting import WAITING

PAGE = Path(__file__).resolve().parents[2] / "docs/ops/recipes.md"
WIDTH = 128
BEGIN = "<!-- the rest is written by scripts/recipes -->"


def rows() -> Iterator[str]:
    yield BEGIN
    yield "\n## Operators with a recipe\n"
    yield "| recipe | operators of torch | what differs |"
    yield "|---|---|---|"
    distinct = {recipe.name: recipe for recipe in recipes.RECIPES.values()}
    for name in sorted(distinct, key=str.lower):
        known = distinct[name]
        others = ", ".join(f"`{one}`" for one in known.names if one != name)
        yield f"| `{name}` | {others} | {known.note} |"
    yield "\n## Operators of lax\n"
    names = "`from opfacade.recipes import lax`: " + ", ".join(f"`{name}`" for name in sorted(lax.LAX)) + "."
    yield textwrap.fill(names, WIDTH, break_long_words=False, break_on_hyphens=False)
    yield "\n## Operators without a recipe\n"
    yield "| reason | operators |"
    yield "|---|---|"
    for reason, names in WAITING.items():
        yield f"| {reason} | {', '.join(f'`{name}`' for name in sorted(names))} |"


def written() -> str:
    above = PAGE.read_text().partition(BEGIN)[0]
    return above + "\n".join(rows()) + "\n"


def main() -> int:
    fresh = written()
    if "--check" in sys.argv[1:]:
        same = PAGE.read_text() == fresh
        print("docs/ops/recipes.md " + ("is current" if same else "is out of date: run scripts/recipes"))
        return 0 if same else 1
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
