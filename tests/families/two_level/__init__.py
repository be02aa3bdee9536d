"""A family only for tests, which brings its own forms of operands: codes with two levels of scales, and tensors on peers."""
