"""Descriptors, args and named plans of every operator, by family.

attention: paged and ragged prefill, paged decode. mla: latent attention decode. kv_cache: writing to a paged cache. cascade:
merging partial results. mask: packing boolean masks. elementwise: elementwise programs (maps). reduction: row programs (folds).
activation: gated activations. rotary: rotary position embedding. norm: RMS and layer norm. softmax: softmax and its logarithm.
quantize: quantisation and its inverse. matmul: matrix products and grouped products. weights: conversion of quantised
weights. moe: mixtures of experts. sampling: from logits to tokens, verification of drafts. collective: exchanges, merges and
log-probabilities over several ranks.

`opfacade list` prints all operators with the kernels for them.
"""
