"""Programs as C++: the statements of each node, the intervals that select cheaper instructions, and the engine of maps."""
