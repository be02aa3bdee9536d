"""`python -m opfacade.testing.fingerprint --device cuda`: prints digests of the outputs of the matrix of SKUs in this
process."""

from __future__ import annotations

import argparse
import json
import os
import random

from opfacade.testing import determinism, matrix
from opfacade.testing.subject import Subject


def fingerprints(backend: str, device: str, seed: int) -> dict[str, str]:
    """{name in the matrix: SHA-256 of its outputs}, with random addresses."""
    import torch

    rng = random.Random(os.urandom(8))
    ballast = [torch.empty(rng.randrange(1, 2**22), dtype=torch.uint8, device=device) for _ in range(16)]
    del ballast[::2]
    names = list(matrix.matrix().items())
    rng.shuffle(names)
    return dict(sorted((n, determinism.fingerprint(Subject(d, backend, device), seed)) for n, d in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(fingerprints(given.backend, given.device, given.seed)))


if __name__ == "__main__":
    main()
