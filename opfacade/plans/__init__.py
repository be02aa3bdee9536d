"""Descriptors, args and named plans of every operator, by family.

attention: paged and ragged prefill, paged decode. mla: latent attention decode. kv_cache: writing to a paged cache. cascade:
merging partial results. mask: packing boolean masks. elementwise: maps, programs of the elements of tensors. reduction: folds,
programs over rows. activation: activations with a gate. rotary: rotary position embedding. norm: RMS and layer norm. softmax:
softmax and its logarithm. quantize: quantisation and its inverse. matmul: products of matrices, and of groups. moe: mixtures of
experts. sampling: from logits to tokens, verification of drafts. collective: exchanges, merges and log-probabilities over
several ranks.

`opfacade list` prints all operators with the kernels for them.
"""
