"""Plans of plans: steps that run one after the other in one workspace, at any number of rows."""
