"""Lets a new process find the packages of this one: they are in the environment, or PYTHONPATH names their folders."""

import os


def python_path(*first: object) -> str:
    """PYTHONPATH with some folders in front."""
    return os.pathsep.join([*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])])
