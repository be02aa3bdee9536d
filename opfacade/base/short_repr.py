"""Short text of a user's value for a message."""

from __future__ import annotations


def shown(value: object) -> str:
    """A value as a message shows it: the first 80 characters of its repr, where it has one."""
    try:
        return repr(value)[:80]
    except RecursionError:
        return "something nested without end"
    except ValueError:  # Python prints no integer of more than 4300 digits
        return f"a {type(value).__name__} that is too long to print"
