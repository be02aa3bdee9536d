"""Compiler flags that a kernel author may enable. They are part of every key: a debug build is another binary.

OPFACADE_JIT_VERBOSE, OPFACADE_JIT_DEBUG and OPFACADE_JIT_LINEINFO are independent, so that verbose output and line
information do not make kernels slow.
"""

from __future__ import annotations

from opfacade import env


def device() -> tuple[str, ...]:
    """Extra flags for nvcc. -G includes line numbers."""
    if env.jit_debug():
        return ("-G",)
    return ("-lineinfo",) if env.jit_lineinfo() else ()


def host() -> tuple[str, ...]:
    """Extra flags for the host compiler; the last -O counts."""
    return ("-g", "-O0") if env.jit_debug() else ()
