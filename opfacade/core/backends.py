"""The names of the backends. A backend is a folder of opfacade/backends, in which the registry finds its candidates by family.

Nothing else distinguishes the backends `cuda` and `library` in a selection or a check: a candidate states whether it compiles,
allocates or waits. The reference takes tensors of any device, the others only those of a GPU.
"""

from __future__ import annotations

from typing import Literal, get_args

# In order of preference: the first candidate without a reason against it is chosen.
Backend = Literal["cuda", "library", "reference"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
ON_GPU: tuple[Backend, ...] = tuple(name for name in BACKENDS if name != "reference")
