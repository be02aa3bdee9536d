"""Launchers of the reference write to tensors of inference mode too, as kernels do."""

from __future__ import annotations

from collections.abc import Callable

from opfacade.core.candidate import Launcher


def in_inference_mode(make: Callable[..., Launcher]) -> Callable[..., Launcher]:
    """Wraps a launcher factory so that torch records no gradients; nothing that runs has a gradient."""

    def made(*what: object) -> Launcher:
        import torch

        decorated: Launcher = torch.inference_mode()(make(*what))
        return decorated

    return made
