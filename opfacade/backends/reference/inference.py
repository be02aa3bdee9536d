"""Makes launchers of the reference write to inference tensors too, and compute in their own types, as kernels do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from opfacade.core.candidate import Launcher

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args

CAST = ("cpu", "cuda")  # kinds of devices for which torch.autocast may be on


def in_inference_mode(make: Callable[..., Launcher]) -> Callable[..., Launcher]:
    """Wraps a launcher factory so that torch records no gradients, which no plan has, and casts nothing: under torch.autocast,
    products of f32 would be computed in 16 bits."""

    def made(*what: object) -> Launcher:
        import torch

        launch = make(*what)

        @torch.inference_mode()
        def exact(args: Args, workspace: Tensor | None) -> None:
            with ExitStack() as stack:
                for kind in CAST:
                    if torch.is_autocast_enabled(kind):
                        stack.enter_context(torch.autocast(kind, enabled=False))
                launch(args, workspace)

        return exact

    return made
