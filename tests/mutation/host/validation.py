"""Faults in the checks of index tensors and values: on the host, at level full, and in the host's reads from a device."""

from tests.mutation.mutant import host

HOST, FULL, VALUES = "validation/host.py", "validation/full.py", "validation/values.py"
DEVICE, LEVELS = "validation/device.py", "validation/__init__.py"
OWNERSHIP = "validation/ownership.py"
VALIDATION, BOUNDS, FINDINGS = (
    "tests/validation/test_validation.py",
    "tests/validation/test_values.py",
    "tests/validation/test_rules.py",
)
CHANNELS = "tests/validation/test_device.py"
TOYS = "tests/families/test_toy_operands.py"
EDGES = "tests/validation/test_edges.py"

FAULTS = (
    host(
        "pools: a layout is guessed",
        "plans/_attention/paging.py",
        "    layout: Layout = Field(",
        '    layout: Layout = Field(default="HND",',
        "tests/core/test_messages.py -k layout_is_not_guessed",
    ),
    host(
        "indices: the first page alone is looked at",
        HOST,
        "own = self.own_pages(request)[unused:] if used",
        "own = self.own_pages(request)[unused : unused + 1] if used",
        f"{EDGES} {FINDINGS}",
    ),
    host(
        "indices: the first wrong request alone is reported",
        HOST,
        "            found.append(wrong)\n",
        "            found = found or [wrong]\n",
        f"{EDGES} {VALIDATION}",
    ),
    host(
        "full: one page may stand twice in a request",
        OWNERSHIP,
        "if first[:2] != use[:2] and",
        "if first.request != use.request and",
        f"{EDGES} {VALIDATION}",
    ),
    host(
        "full: the first page alone is looked at",
        FULL,
        "    for i, page in enumerate(pages.tolist()):\n        first, stop",
        "    for i, page in enumerate(pages.tolist()[:1]):\n        first, stop",
        VALIDATION,
    ),
    host(
        "levels: the last guard alone is asked",
        LEVELS,
        "        for one in self._guards:\n            one.check()",
        "        for one in self._guards[-1:]:\n            one.check()",
        f"{EDGES} {BOUNDS}",
    ),
    host(
        "levels: the first guard alone stands before a launch",
        LEVELS,
        "        for one in reversed(self._guards):\n",
        "        for one in self._guards[:1]:\n",
        f"{EDGES} {BOUNDS}",
    ),
    host(
        "values: the first operand alone is looked at",
        VALUES,
        "    for one in bounded:\n        tensor",
        "    for one in bounded[:1]:\n        tensor",
        f"{BOUNDS} {TOYS} {EDGES}",
    ),
    host(
        "device: findings come in any order",
        DEVICE,
        "sorted(found, key=lambda f: (f.call, f.request))",
        "found[::-1]",
        f"{CHANNELS} {EDGES}",
    ),
)
