"""Routing, sorting, gathering and combining: the operators before and after the products of experts."""
