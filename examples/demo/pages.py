"""The page allocator: a free list with reservations, so that an admitted request never waits for a page."""

from __future__ import annotations

from opfacade.errors import InternalError


class PageAllocator:
    """Pages 0 to num_pages - 1. A request reserves all pages that it will need, then takes pages as its tokens arrive."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(reversed(range(num_pages)))
        self._owner: dict[int, int] = {}
        self._reserved: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def owners(self) -> dict[int, int]:
        """{page: the request that owns it}, for the pages in use."""
        return dict(self._owner)

    def reserve(self, request: int, pages: int) -> bool:
        """Reserves pages for a request, if enough unreserved pages are left."""
        if pages > len(self._free) - sum(self._reserved.values()):
            return False
        self._reserved[request] = pages
        return True

    def take(self, request: int) -> int:
        """Takes a page from the request's reservation."""
        if self._reserved.get(request, 0) < 1:
            raise InternalError(f"demo.pages: request {request} takes a page beyond its reservation")
        self._reserved[request] -= 1
        page = self._free.pop()
        self._owner[page] = request
        return page

    def give_back(self, request: int, pages: list[int]) -> None:
        """Frees all of a request's pages, and the rest of its reservation."""
        for page in pages:
            if self._owner.pop(page, None) != request:
                raise InternalError(f"demo.pages: page {page} is not request {request}'s to return")
        self._free += pages
        self._reserved.pop(request, None)
