"""Short text of a user's value for a message."""

from __future__ import annotations


def shown(value: object) -> str:
    """A value for a message: the first 80 characters of its repr, or a description if repr fails."""
    try:
        return repr(value)[:80]
    except RecursionError:
        return "something nested without end"
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        return f"a {type(value).__name__} that is too long to print"
