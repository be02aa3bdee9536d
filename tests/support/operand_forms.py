"""Calls with memory layouts that users may have: expanded heads, tables that are slices."""

from dataclasses import replace

from opfacade.core.descriptor import operands_of

HEADS = ("num_qo_heads", "num_kv_heads")


def axes_of_heads(descriptor):
    """{input: its axis of heads}, of inputs of several heads with any strides."""
    found = {}
    for name, spec in operands_of(descriptor).items():
        axes = [axis for axis, dim in enumerate(spec.shape[:-1]) if dim.name in HEADS and dim.size > 1]
        if spec.role == "in" and spec.layout == "rows" and axes:
            found[name] = axes[0]
    return found


def expanded(descriptor, args):
    """The same call, in which all heads of each input are the first one, with stride 0; and the names of those inputs."""
    found = {}
    for name, axis in axes_of_heads(descriptor).items():
        tensor = getattr(args, name)
        found[name] = tensor.narrow(axis, 0, 1).expand(tensor.shape)
    assert all(0 in tensor.stride() for tensor in found.values())
    return replace(args, **found), tuple(found)


def sliced(args):
    """The same call with a block table that consists of columns of a wider table, whose other entries are not pages."""
    table = args.block_table
    wide = table.new_full((table.shape[0], table.shape[1] + 7), 2**31 - 1)
    wide[:, 3:-4] = table
    return replace(args, block_table=wide[:, 3:-4])
