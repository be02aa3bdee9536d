"""Routing, sorting, gathering and combining: the operators around the products of experts."""
