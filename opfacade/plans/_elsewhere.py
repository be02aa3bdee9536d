"""Names of other libraries for the rows of a call, of all its requests together, for the hints of messages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ROWS: Mapping[str, str] = MappingProxyType(dict.fromkeys(("num_tokens", "total_tokens", "total_q", "nnz"), "total_num_rows"))
