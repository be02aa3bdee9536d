"""Functions of other libraries on opfacade's plans: `opfacade.compat.flash_attn` and `opfacade.compat.flashinfer`.

    from opfacade.compat.flash_attn import flash_attn_func
    import opfacade.compat.flashinfer as flashinfer

The adapters use only the public API. An argument without an equivalent is refused by name, with an UnsupportedError, before
anything is written. `docs/migrating.md` lists the names."""

from opfacade.compat.selecting import preferring as preferring
