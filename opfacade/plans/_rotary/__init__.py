"""Parts of rotations: groups of pairs, tables of angles, and programs of one element."""
