"""Parts of products: fields, operands, groups, scales and epilogues."""
