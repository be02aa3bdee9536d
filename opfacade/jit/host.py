"""The host library: the fast paths of all CUDA plans (csrc/host). Built and cached like a kernel, loaded once per process."""

from __future__ import annotations

from opfacade.jit.spec import HOST_ARCH, JitSpec

# -O2: it is built once, and every call runs through it; bindings are built often and run once a recorded call.
HOST = JitSpec.of("host", "host/host", HOST_ARCH, flags=("-O2",))
