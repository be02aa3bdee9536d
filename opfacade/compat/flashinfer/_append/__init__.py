"""Appends of rows at any positions: destinations, checks and errors in terms of FlashInfer's arguments."""
