"""Faults in products: steps of k, phases of barriers, edges and the epilogue."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/matmul/test_matmul_kernel.py"
K = "kernels/matmul"
BOUND = f"{KERNEL} -k keeps_its_bound"
CLUSTER = f"{KERNEL} -k of_a_cluster"
I8 = "tests/families/matmul/test_integer_kernel.py -k exact"
SEGMENTS = f"{KERNEL} -k segments_have"
FP8 = "tests/families/matmul/test_fp8_kernel.py"
PARTS = f"{FP8} -k keeps_its_bound"
RACES = "tests/emulator/test_order.py -k kernels"
GROUPS = "tests/families/matmul/test_grouped_kernel.py"
BYTES = "tests/families/matmul/test_grouped_bytes_kernel.py -k bound"
ROWS = "tests/families/matmul/test_rows_kernel.py"
LAYOUTS = f"{KERNEL} -k as_they_lie"
ODD = "tests/families/matmul/test_odd_kernel.py -k odd_operand"
STAGED = f"{KERNEL} -k staged"
ONE_MEMORY = "the emulator has no second proxy of shared memory, so products and stores see each copy at once"


def fault(name, file, old, new, tests=BOUND):
    return cpu(f"products: {name}", f"{K}/{file}", old, new, tests)


def odd(name, file, old, new):
    return cpu(f"products of odd operands: {name}", f"{K}/{file}", old, new, ODD)


def unaligned(name, file, old, new):
    return cpu(f"products to unaligned rows: {name}", f"{K}/{file}", old, new, ROWS)


def staged(name, old, new, **more):
    return cpu(f"products in staged rows: {name}", f"{K}/staged_rows.cuh", old, new, STAGED, **more)


def apart(name, file, old, new):
    return cpu(f"products in segments: {name}", f"{K}/{file}", old, new, SEGMENTS)


def grouped(name, file, old, new, tests=f"{GROUPS} -k bound", **more):
    return cpu(f"products of groups: {name}", f"{K}/{file}", old, new, tests, **more)


def fp8(name, file, old, new, tests=PARTS):
    return cpu(f"products of fp8: {name}", f"{K}/{file}", old, new, tests)


FAULTS = (
    fault("a step of k is dropped", "tiles.cuh", "steps = max(1, (p.k + C::kPanels * kPanel<C> - 1)", "steps = max(1, p.k"),
    fault("a panel has the k of the first", "load.cuh", "full, tile, k + panel * kPanel<C>);", "full, tile, k);"),
    fault("sums of a tile begin with those of the last", "chain.cuh", "multiply(sums, step > 0);", "multiply(sums, true);"),
    fault("operands are exchanged", "chain.cuh", "this->on_m(panel), this->on_n(term * C::kPanels + panel)",
          "this->on_n(term * C::kPanels + panel), this->on_m(panel)"),
    fault("a stage is not waited for", "chain.cuh", "ring.wait_full(smem.full(ring.stage));", ""),
    fault("a stage is filled before it is free", "load.cuh",
          "ring.wait_empty(smem.empty(ring.stage));\n      load_step", "load_step"),
    fault("the phase of a stage is stale", "chain.cuh", "ring.wait_full(smem.full(ring.stage));",
          "mbarrier_wait(smem.full(ring.stage), 0);"),
    fault("a stage is released while its products run", "chain.cuh", "        wgmma_wait<1>();\n", ""),
    fault("sums are stored while products run", "chain.cuh", "    wgmma_wait<0>();\n", ""),
    fault("the second warpgroup has the rows of the first", "finish.cuh", "row = tile.row + group * 64 +", "row = tile.row +",
          f"{KERNEL} --heavy -k no_tile"),
    staged("all warps have the memory of the first", "(thread / 32 - kWarpgroup / 32) * kBoxes.count + box", "box"),
    staged("a row has the results of the one above", "sums[4 * block + 2 * half],", "sums[4 * block],"),
    staged("all boxes have the columns of the first", "kShort ? sums + first / 2 : sums", "sums"),
    staged("columns of a round do not move", "sums[i] = sums[i + kColumns / 2];", "sums[i] = sums[i];"),
    staged("rows behind the last are stored", "if (first + i * kLines < tile.end) store", "store"),
    staged("columns behind the last are stored", "    if (column + 8 * vector >= p.columns) return;\n", ""),
    staged("a box is written before it has been read",
           "      else if (piece >= kBoxes.count) wait_for_boxes<kBoxes.count - 1>();\n", ""),
    staged("a box is read later than it is waited for", "wait_for_boxes<kBoxes.count - 1>()", "wait_for_boxes<kBoxes.count>()"),
    staged("boxes of the tile before are not waited for", "if (piece == 0) wait_for_boxes<0>();\n      else if (p", "if (p"),
    staged("boxes of rows that are not valid are sent", "&& (tile.end == p.rows || row + 16 <= tile.end)", ""),
    staged("boxes are not swizzled", "(vector ^ swizzle_of<kVectors>(row)) * 16;", "vector * 16;"),
    staged("boxes of a batch are those of the first", "{{column, row, tile.batch, 0, 0}}", "{{column, row, 0, 0, 0}}"),
    staged("TMA sees boxes before they are written", "      if (sends) fence_async_shared();\n", "", blind=ONE_MEMORY),
    fault("a CTA ends before its boxes are read", "tile.cuh", "StagedRows<C>::template wait_for_boxes<0>();", "{}", STAGED),
    cpu("products in staged rows: boxes have no memory", "csrc/matmul/matmul.cc.jinja", "shared_with_boxes(kBoxes, kRows)",
        "kBoxes.begin", STAGED),
    cpu("products in staged rows: narrow boxes are mapped as wide ones", "csrc/matmul/matmul.h",
        "MapElement::kBf16, 0, narrow}", "MapElement::kBf16, 0, 0}", STAGED),
    staged("rows that are not aligned are stored as aligned", "return p.out.eights != 0 && (p", "return (p"),
    staged("the second warpgroup has the rows of the first", "tile.row + group * 64 +", "tile.row +"),
    staged("lines of a warp begin with its second", "lane / kVectors + i * kLines, vector)",
           "(lane / kVectors + i * kLines + 1) % 16, vector)"),
    fault("a row off whole vectors is stored as vectors", "staged_rows.cuh",
          "(p.columns % 8 == 0 || (p.out_mapped != 0 && p.num_valid == nullptr))", "true", f"{KERNEL} -k inside_a_vector"),
    fault("a valid row off whole vectors is stored as vectors", "staged_rows.cuh", " && p.num_valid == nullptr", "",
          f"{KERNEL} -k inside_a_vector"),
    cpu("products: results of 8 bits are not divided", "opfacade/plans/_matmul/program.py",
        'found / value("out_scale", kind)', "found", "tests/families/matmul/test_quantised_results.py"),
    cpu("products to unaligned rows: two count as one", "csrc/matmul/matmul.h", "of.size(axis) > 1 ? own",
        "of.size(axis) > 2 ? own", f"{ROWS} -k two_rows"),
    fault("rows that are not valid are written", "tiles.cuh", "rows = valid_rows(p);", "rows = p.rows;"),
    fault("a count above the number of rows is that number", "tiles.cuh", "? counted : 0;",
          "? counted : max(0, min(counted, p.rows));", f"{KERNEL} -k wrong_count"),
    fault("sums of a round do not move", "finish.cuh", "sums[i] = sums[i + 4 * kRound];", "sums[i] = sums[i];",
          f"{KERNEL} -k no_tile"),
    fault("a row has the sums of the one above", "finish.cuh", "0, sums[4 * block + 2 * half],", "0, sums[4 * block],"),
    fault("words of a quad stay where they are", "finish.cuh", "    transpose_quad(word[half]);\n", ""),
    fault("eight columns are stored at an edge", "finish.cuh", "else if (left >= 8) store", "else if (true) store",
          f"{KERNEL} -k inside_a_vector"),
    fault("bytes of rows that are not loaded are expected", "load.cuh", " - C::kPanels * (C::kRows - rows) * 128", ""),
    fault("the column past an odd edge is stored", "finish.cuh", "if (left > 1) bits[1] = second;", "bits[1] = second;",
          f"{KERNEL} -k change_no_bit"),
    fault("a tensor that is off a pair is read as pairs", "finish.cuh", "if (aligned && left > 1) {\n      const",
          "if (left > 0) {\n      const"),
    fault("elements past k are copied", "load.cuh", "line < lines ? length - chunk * kEach : 0", "kEach", ODD),
    fault("copied chunks are moved", "load.cuh", ": panel_address(line, chunk % 8)", ": panel_address(line, (chunk + 1) % 8)",
          ODD),
    fault("a tile lies in another band", "tiles.cuh", "rest - first * across", "rest", f"{KERNEL} -k many_bands"),
    fault("a stage of a cluster is free when one CTA is done", "tile.cuh", "(p.mapped != 0 ? C::kCluster : 1)", "1", CLUSTER),
    fault("a CTA loads the part of the first", "load.cuh", "first = Tiles<C>::rank() * kPart;", "first = 0;", CLUSTER),
    fault("tiles of a cluster are the same", "tiles.cuh", " + rank() * C::kRows", "", CLUSTER),
    fault("a batch has the first operands", "load.cuh", "full, 0, k, tile.row, tile.batch);", "full, 0, k, tile.row, 0);"),
    fault("panels repeat the first", "load.cuh", "BoxAt{{row + first, k, batch", "BoxAt{{row, k, batch", LAYOUTS),
    fault("the next steps of a transposed operand are its rows", "stage_reader.cuh",
        "group_steps(panels, kPanelGroup, kAcross)", "Descriptors(panel_descriptor(panels, kPanelGroup, kAcross), kPanelGroup)",
        LAYOUTS),
    fault("copied lines of columns lie in one panel", "load.cuh", "line / kPanel<C> * kRows * 128 + ", "", LAYOUTS),
    odd("chunks are not shifted", "lines.cuh", "    shift_down<4, sizeof(Bits)>(word, over);\n", ""),
    odd("vectors are not shifted", "copied_lines.cuh", "    shift_down<4, C::kSize>(word, over(i) * C::kSize);\n", ""),
    odd("the last chunk of a stage goes on with its first", "copied_lines.cuh", "place(next, i, 0)", "place(stage, i, 0)"),
    odd("elements behind a line are copied", "copied_lines.cuh", "min(max(length - at, 0), kEach)", "kEach"),
    odd("the first chunk is shifted too", "copied_lines.cuh", "(!kApart || k + chunk > 0)", "true"),
    cpu("products of odd operands: another warp stores the first chunk of a line", f"{K}/copied_lines.cuh",
        "threadIdx.x % kWarpgroup / 32 * kOfWarp", "(threadIdx.x % kWarpgroup / 32 ^ 1) * kOfWarp",
        "tests/families/matmul/test_odd_kernel.py -k begins_the_next"),
    odd("first chunks are those of the first line", "copied_lines.cuh", "begin + (own - line) * (step / kLines)", "begin"),
    odd("the first chunk of a later step is read as that of the line", "copied_lines.cuh",
        "if (!kApart && k + chunk == 0)", "if (chunk == 0)"),
    odd("copies of the next stage are not waited for", "load.cuh", "cp_async_wait<kDepth - 1>", "cp_async_wait<kDepth>"),
    odd("no vector behind the last step is copied", "load.cuh", "if (step <= steps) {", "if (step < steps) {"),
    odd("a stage is shifted as if k began with it", "load.cuh", "(begin + step - kDepth) * kStep", "0"),
    odd("parts of a line are the first", "repack.cuh", "warp % parts * kRepackPart", "0"),
    odd("a copy has the first of the batch", "repack.cuh", "batch * of.batch + ", ""),
    odd("copies of both have one place", "../../csrc/matmul/repack.h",
        "if (placed) next_ += ceil_div(p.batch * lines * pitch, 256) * 256;", ""),
    unaligned("what is left over of a tile is lost", "finish.cuh", "  if (p.out.eights != 0) return;", "  return;"),
    unaligned("elements before a tile are stored", "store_rows.cuh", "begins && lane % 4 == 0 ? over : 0", "0"),
    unaligned("the first thread goes on with its own block", "store_rows.cuh", "lane % 4 == 0 ? left_over[i]",
              "false ? left_over[i]"),
    unaligned("elements behind a row are stored", "store_rows.cuh", ": 8, left + over)", ": 8, 8)"),
    unaligned("the element at an odd beginning is lost", "store_rows.cuh", "if (first == 2 * i + 1)", "if (false)"),
    unaligned("a vector is shifted by what it should keep", "store_rows.cuh", "16 - 2 * over", "2 * over"),
    cpu("products of i8: sums of a tile begin with those of the last", f"{K}/integers.cuh", "multiply(found, step > 0);",
        "multiply(found, true);", I8),
    cpu("products of i8: sums are read while products run", f"{K}/integers.cuh", "    wgmma_wait<0>();\n", "", I8),
    cpu("products of i8: bits of sums are those of f32", f"{K}/integers.cuh", "C::kBits ? __uint", "false ? __uint", I8),
    apart("a segment of a cluster is lost", "split.cuh", "segment < many; ++segment", "segment < many - 1; ++segment"),
    apart("segments are added in another order", "split.cuh",
        "(place, segment / kOwn)", "(place, (many - 1 - segment) / kOwn)"),
    apart("a CTA has the first of its two segments twice", "split.cuh", "segment % kOwn * (kCount / 4) + i / 4", "i / 4"),
    apart("a CTA of two segments begins with the second of another", "tiles.cuh", "C::kOwn * (p.segment", "1 * (p.segment"),
    apart("a segment goes on into the next of its CTA", "split.cuh", "min(length, tiles.steps - i * length)", "tiles.steps"),
    apart("a CTA begins with the first segment", "load.cuh", "(tiles.begin + step) * C::kPanels", "step * C::kPanels"),
    apart("a segment goes on to the end", "tiles.cuh", "begin = segment() * own, steps = min(own, steps - begin);",
          "begin = segment() * own;"),
    apart("partial sums are stored while products of other warps run", "split.cuh",
          "    named_sync(1, kWarpgroup);  // products of the other warps still read the stages\n", ""),
    apart("rows of the first warp are finished by nobody", "split.cuh", "== tiles.segment()) {", "== tiles.segment() + 1) {"),
    apart("partial sums are read before all are there", "split.cuh", "  }\n  cluster_sync();\n", "  }\n"),
    apart("a CTA ends while others read its sums", "split.cuh", "  cluster_sync();  // others", "  // others"),
    apart("the last segment of one CTA begins anew", "chain.cuh", "first == 0 ? found[i]", "true ? found[i]"),
    fp8("a step is dropped", "tiles.cuh", "steps = max(1, (p.k + C::kPanels * kPanel<C> - 1)", "steps = max(1, p.k",
          f"{FP8} -k planted"),
    fp8("parts have the scale of the first", "scales.cuh", "      x[half] += x_part;\n", ""),
    fp8("the last part has the scale of the one before", "parts.cuh", "own.later(slot);", "if (slot == 0) own.later(slot);",
        f"{BYTES} and gathered"),
    fp8("parts have the factors of the first", "factors.cuh", "x[i][part * p.x_scale.part]", "x[i][0]"),
    fp8("parts have the scale of the weight's first", "factors.cuh", "weight[part * p.weight_scale.part]", "weight[0]"),
    fp8("the second panel has the factors of the first", "parts.cuh",
        "(panel * C::kRows + own", "(own"),
    fp8("factors have the rows of the first warp", "parts.cuh",
        "own(group * 64 + warpgroup_row())", "own(group * 64 + warpgroup_row() % 16)"),
    fp8("a row has the factor of the one above", "parts.cuh", "C::kRows + own + 8 * half)", "C::kRows + own)"),
    fp8("a lane releases a stage whose factors others still read", "stage_reader.cuh",
        "    if constexpr (C::kFactors) __syncwarp();\n", "", RACES),
    fp8("factors are put before a stage is free", "factors.cuh",
        "      mbarrier_wait(smem.empty(stage), at / C::kStages % 2 ^ 1);\n      factors", "      factors",
        f"{FP8} -k bound and long"),
    fp8("factors of copied steps are those of the step before", "factors.cuh", "    factors.read(next);\n", "",
        f"{FP8} -k no_tile"),
    fp8("blocks of columns have the scale of the first", "scales.cuh", "(first + p.offset_columns) / 128", "0"),
    fp8("a block that begins inside a tile is not seen", "parts.cuh", ">= second ? own[1]", ">= second ? own[0]"),
    fp8("the next block begins with the tile", "scales.cuh", "128 - p.offset_columns;", "128;"),
    fp8("steps of the next block are added to this one", "parts.cuh", "(i >= kCut) == next)", "(i >= 4) == next)"),
    fp8("rows share a scale", "parts.cuh", "found[slot].row[half] * found", "found[slot].row[0] * found"),
    fp8("a part begins with the last one", "parts.cuh", "this->weight_steps(panel), false);",
        "this->weight_steps(panel), true);"),
    fp8("a part is added before it is there", "parts.cuh",
          "wgmma_wait<0>();\n          pin(part);", "pin(part);"),
    fp8("a part of two in flight is added before it is there", "parts.cuh",
          "wgmma_wait<1>();\n      add(sums, odd", "add(sums, odd"),
    fp8("parts of one parity have scales of the other", "parts.cuh", "own.add(sums, part, slot);", "own.add(sums, part, 0);"),
    fp8("the last of an odd number of parts is lost", "parts.cuh", "add(sums, even, own, of_even, 0);\n    }\n  }",
          "this->release(of_even);\n    }\n  }", f"{FP8} -k no_tile"),
    fp8("scales of a cut block stay behind", "parts.cuh", "found[0] = found[1], found[1] = scales.next(); }",
          "found[1] = scales.next(); }"),
    fp8("a range of columns begins one later", "scales.cuh", "column >= p.starts[i]", "column > p.starts[i]"),
    grouped("a group ends a row late", "groups.cuh", "in_band / height * C::kColumns, rows.stop, group}",
            "in_band / height * C::kColumns, rows.stop + 1, group}"),
    grouped("tiles of a group that is not whole are lost", "groups.cuh", "(rows.stop - rows.first + kHeight - 1) / kHeight",
            "(rows.stop - rows.first) / kHeight"),
    grouped("every group has the first weight", "load.cuh", "tile.weight * C::kTerms + term)", "term)"),
    grouped("every group has the first bias", "../../csrc/matmul/_columns.cu.jinja",
            "static_cast<int64_t>(batch) * p.columns + ", ""),
    grouped("sums of tiles restart each 32 groups", "groups.cuh", "before[at] = carried + sum;", "before[at] = sum;"),
    grouped("an empty group has a tile of its neighbour", "groups.cuh", "if (before[middle] <= row) low",
            "if (before[middle] < row) low"),
    grouped("tables are read before all groups are counted", "groups.cuh",
            "    if (threadIdx.x < 32) sum_up();\n    __syncthreads();\n", "    if (threadIdx.x < 32) sum_up();\n"),
    grouped("a table that falls is believed", "groups.cuh", "min(max(p.groups[group + 1], first), size)",
            "p.groups[group + 1]", f"{GROUPS} -k tables"),
    grouped("a count past the rows is believed", "groups.cuh", "count < 0 || count > p.rows ? 0 : count",
            "count < 0 ? 0 : count", f"{GROUPS} -k count"),
    grouped("a row that takes none of x is written", "finish.cuh", "  if constexpr (C::kGather) return static_cast",
            "  if constexpr (false) return static_cast", f"{GROUPS} -k takes_none"),
    grouped("gathered rows are the rows in turn", "gathered.cuh", "row < tile.end ? rows[row] : -1",
            "row < tile.end ? row : -1"),
    grouped("copied rows of x are not seen by products", "gathered.cuh", "      publish_writes(full);",
            "      mbarrier_arrive(full);", blind=ONE_MEMORY),
    grouped("a masked group reads the rows of the first", "groups.cuh", "{C::kMasked ? group : 0, row,", "{0, row,"),
    grouped("aligned rows that are gathered are the rows in turn", "tiles.cuh",
            "p.x_rows[static_cast<int64_t>(tile.batch) * p.rows + row] : -1", "row : -1"),
    grouped("gathered rows are handed on while they are copied", "gathered.cuh", "cp_async_wait<kDepth>(), hand_on()",
            "hand_on()"),
    grouped("the last gathered rows are not waited for", "gathered.cuh", "  cp_async_wait<0>();\n", ""),
    grouped("gathered rows have chunks past the end of k", "gathered.cuh", "min(max(p.k - at, 0), kEach)", "kEach",
            f"{GROUPS} -k any_address"),
    grouped("rows behind all groups keep what they hold", "rest.cuh", "clear(0, 0, first), clear(0, max(first, stop), p.rows);",
            "clear(0, 0, first);"),
    grouped("a warp has a turn below 0", "rest.cuh", "    turn += turn < 0 ? warps : 0;\n", ""),
    grouped("the first elements of an unaligned row are not cleared", "rest.cuh", "  if (lane < first) row[lane] = 0;\n", "",
            f"{GROUPS} -k cleared"),
    grouped("rows with gates are cleared to twice their width", "rest.cuh", "(C::kGated ? 2 : 1)", "1"),
    grouped("gathered rows have the scales of the rows in turn", "scales.cuh",
            "max(0, row_taken(p, tile, row + 8 * half))", "row + 8 * half", BYTES),
    grouped("gathered tokens have the scales of the rows in turn", "../../csrc/matmul/_program.cu.jinja",
            '"p.x_rows[static_cast<int64_t>(batch) * p.rows + row]" if', '"row" if', BYTES),
    grouped("every group has the first blocks of scales", "scales.cuh", "tile.weight * p.weight_scale.batch +", "", BYTES),
    grouped("every group has the first scales of columns", "finish.cuh",
            "load_columns(columns, p, tile.weight, column, left)", "load_columns(columns, p, 0, column, left)", BYTES),
    fp8("columns of a pair share a scale", "../../csrc/matmul/_columns.cu.jinja", "\"column + i\" if", "\"column\" if"),
    cpu("product: a zero point is subtracted from a rounded sum", f"{K}/scales.cuh",
        "static_cast<int32_t>(__float_as_uint(sum) - zero * weight_sum))",
        "static_cast<int32_t>(__float_as_uint(sum))) - static_cast<float>(static_cast<int32_t>(zero * weight_sum))", I8),
    cpu("product: columns of a pair have the sum of the first", "csrc/matmul/_program.cu.jinja",
        "unshifted(sum1, zero, of.sum[1])", "unshifted(sum1, zero, of.sum[0])", I8),
)  # fmt: skip
