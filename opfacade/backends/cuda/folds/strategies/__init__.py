"""The numbers of fold strategies, one file each. Selection and launch import them; templates get them as constants by name, and
kernels as members of the printed program."""
