"""Names and calls of other libraries on opfacade's plans: `opfacade.compat.flash_attn` and `opfacade.compat.flashinfer`.

    from opfacade.compat.flash_attn import flash_attn_func
    import opfacade.compat.flashinfer as flashinfer

The adapters use only what opfacade offers to every user. An argument that has no equal here is refused by its name, with an
UnsupportedError, before anything is written. `docs/migrating.md` has the tables of names.
"""

from opfacade.compat.selecting import preferring as preferring
