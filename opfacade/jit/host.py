"""The host library: the fast paths of all CUDA plans (csrc/host). Built and cached like a kernel, loaded once per process."""

from __future__ import annotations

from opfacade.jit.spec import HOST_ARCH, JitSpec

# -O2, because the library is built once and runs in every call; bindings are built often and run only once per recorded call.
HOST = JitSpec.of("host", "host/host", HOST_ARCH, flags=("-O2",))
