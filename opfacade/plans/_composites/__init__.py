"""Composite plans: steps that run one after the other in one workspace, for any number of rows."""
