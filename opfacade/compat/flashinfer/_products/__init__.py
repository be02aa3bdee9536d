"""Products of FlashInfer's calls, of one matrix and of groups."""
