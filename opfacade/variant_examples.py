"""Ready variants of attention: the import path for users of `opfacade.plans._attention.variant_examples`."""

from opfacade.plans._attention.variant_examples import (
    alibi as alibi,
)
from opfacade.plans._attention.variant_examples import (
    alibi_slopes as alibi_slopes,
)
from opfacade.plans._attention.variant_examples import (
    document_mask as document_mask,
)
from opfacade.plans._attention.variant_examples import (
    sliding_window as sliding_window,
)
from opfacade.plans._attention.variant_examples import (
    soft_cap as soft_cap,
)
