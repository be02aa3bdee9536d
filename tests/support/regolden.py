"""Writes tests/golden/*.json, what no change may alter unseen: `python -m tests.support.regolden`.

One file an example: its JSON, its digest, and on some targets the SKU and workspace of every candidate that accepts it.
"""

import json
from pathlib import Path
from unittest.mock import patch

from opfacade import Preference, Target
from opfacade.select.registry import examples
from opfacade.select.selection import survey

GOLDEN = Path(__file__).parents[1] / "golden"
TARGETS = ("sm_90a", "sm_80", "cpu")


def golden(descriptor):
    """{"descriptor", "digest", "skus": {target: {candidate: [sku id, workspace bytes]}}}, whatever compiler and libraries
    are here."""
    skus = {}
    for target in TARGETS:
        compiler = patch("opfacade.backends.cuda.ptxas.release", return_value=None)
        with compiler, patch("opfacade.backends.library.cublaslt_library.installed", return_value=None):
            options = survey(descriptor, Preference(), Target.parse(target))
        skus[target] = {o.name: [o.sku.id, o.workspace_size] for o in options if o.sku is not None}
    return {"descriptor": descriptor.model_dump(mode="json"), "digest": descriptor.digest(), "skus": skus}


def by_name():
    """{file name: descriptor}: the op and a number."""
    found = {}
    for descriptor in examples():
        number = sum(name.startswith(descriptor.op) for name in found)
        found[f"{descriptor.op}-{number}"] = descriptor
    return found


def main():
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.json"):
        old.unlink()
    for name, descriptor in by_name().items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(golden(descriptor), indent=2) + "\n")


if __name__ == "__main__":
    main()
