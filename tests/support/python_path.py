"""Where a process finds the packages of this one: an environment has them, or PYTHONPATH names their folders."""

import os


def python_path(*first: object) -> str:
    """PYTHONPATH with some folders in front."""
    return os.pathsep.join([*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])])
