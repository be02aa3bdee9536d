"""The check for overwritten wgmma operands, on small programs in the formats of both disassemblers."""

import pytest

from opfacade.jit.sass import hazards as sass
from opfacade.jit.sass.flow import successors


def listing(*lines, name="k"):
    """The text of `cuobjdump -sass`: 16 bytes per instruction."""
    body = "\n".join(f"        /*{16 * i:04x}*/                   {line} ;" for i, line in enumerate(lines))
    return f"\tcode for sm_90a\n\t\tFunction : {name}\n{body}\n"


RS = "HGMMA.64x8x16.F32.BF16 R24, R4, gdesc[UR4], R24, gsb0"
RS_OPEN = "HGMMA.64x8x16.F32.BF16 R24, R4, gdesc[UR4], R24"
SS = "HGMMA.64x8x16.F32.BF16 R24, gdesc[UR4], R24, gsb0"
WAIT0, WAIT1 = "WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.DEPBAR.LE gsb0, 0x1"


def broken(*lines):
    return [(hazard.address // 16, hazard.register) for hazard in sass.lint(listing(*lines))]


def test_a_write_before_the_wait_is_a_hazard():
    assert broken(RS, "MOV R5, R9", WAIT0, "EXIT") == [(1, 5)]


def test_the_hazard_names_the_write_and_the_operand():
    (hazard,) = sass.lint(listing(RS, "MOV R5, R9", "EXIT", name="attend"))
    assert str(hazard) == "attend at 0x0010: `MOV R5, R9` overwrites R5, read by the wgmma at 0x0000"


def test_a_write_after_the_wait_is_no_hazard():
    assert broken(RS, WAIT0, "MOV R5, R9", "EXIT") == []


def test_other_registers_may_be_written():
    assert broken(RS, "MOV R8, R9", "MOV R3, R9", WAIT0, "EXIT") == []


def test_operands_in_shared_memory_occupy_no_register():
    assert broken(SS, "MOV R5, R9", WAIT0, "EXIT") == []


def test_a_wait_with_one_pending_group_covers_only_older_groups():
    second = "HGMMA.64x8x16.F32.BF16 R24, R12, gdesc[UR4], R24, gsb0"
    assert broken(RS, second, WAIT1, "MOV R5, R9", "MOV R12, R9", "EXIT") == [(4, 12)]


def test_a_wait_does_not_cover_an_uncommitted_group():
    assert broken(RS_OPEN, WAIT0, "MOV R4, R9", "EXIT") == [(2, 4)]


def test_a_write_in_the_next_iteration_of_a_loop_is_a_hazard():
    """In program order the write comes first; the wgmma precedes it only through the back edge."""
    loop = ("MOV R5, R9", RS, "ISETP.NE.AND P0, PT, R2, RZ, PT", "@P0 BRA 0x0", WAIT0, "EXIT")
    assert broken(*loop) == [(0, 5)]


def test_a_loop_that_waits_before_the_write_is_no_hazard():
    assert broken("MOV R5, R9", RS, WAIT0, "@P0 BRA 0x0", "EXIT") == []


def test_a_wait_with_one_pending_group_does_not_cover_the_previous_iteration():
    assert broken("MOV R5, R9", RS, WAIT1, "@P0 BRA 0x0", WAIT0, "EXIT") == [(0, 5)]


def test_two_alternating_buffers_with_one_pending_group_are_no_hazard():
    other = "HGMMA.64x8x16.F32.BF16 R24, R12, gdesc[UR4], R24, gsb0"
    assert broken("MOV R5, R9", RS, WAIT1, "MOV R13, R9", other, WAIT1, "@P0 BRA 0x0", WAIT0, "EXIT") == []


def test_the_check_of_a_loop_without_a_wait_terminates():
    assert broken(RS, "@P0 BRA 0x0", "MOV R7, R0", "EXIT") == [(2, 7)]


def test_a_product_pending_on_one_branch_is_pending_after_the_join():
    assert broken("@P0 BRA 0x20", RS, "MOV R4, R9", WAIT0, "EXIT") == [(2, 4)]


def test_code_after_an_unconditional_branch_is_not_reached():
    assert broken(RS, "BRA 0x30", "MOV R4, R9", WAIT0, "EXIT") == []


def test_reconverging_threads_continue_at_the_target_of_the_barrier():
    assert broken("BSSY B0, 0x40", RS, "BSYNC B0", WAIT0, "MOV R4, R9", WAIT0, "EXIT") == [(4, 4)]


def test_a_reused_barrier_leads_only_to_its_latest_target():
    """The threads that reconverge at 0x30 continue at 0x40, not at the write to which another use of B0 leads."""
    before = ("BSSY B0, 0x20", "BSYNC B0", "MOV R4, R9", RS)
    assert broken(*before, "BSSY B0, 0x60", "BSYNC B0", WAIT0, "EXIT") == []


def test_labels_of_the_other_disassembler_are_followed():
    text = f"""
.text.attend:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   MOV R5, R9 ;
        /*0020*/                   {RS} ;
        /*0030*/              @!P0 BRA `(.L_x_0) ;
        /*0040*/                   EXIT ;
"""
    assert [(h.function, h.address) for h in sass.lint(text)] == [("attend", 0x10)]


def test_each_function_is_checked_separately():
    assert sass.lint(listing(RS, "EXIT", name="a") + listing("MOV R5, R9", "EXIT", name="b")) == ()


@pytest.mark.parametrize(
    ("text", "first", "count"),
    [
        ("MOV R5, R9", 5, 1), ("@!P3 LDS.128 R4, [R9+0x10]", 4, 4), ("LDG.E.64 R8, desc[UR6][R2.64]", 8, 2),
        ("LDSM.16.M88.4 R4, [R9]", 4, 4), ("LDSM.16.MT88.2 R4, [R9]", 4, 2), ("SHFL.BFLY PT, R6, R7, 0x1, 0x1f", 6, 1),
        ("IMAD.WIDE.U32 R4, R2, 0x4, R6", 4, 2), ("CS2R R4, SRZ", 4, 2), ("CS2R.32 R4, SR_CLOCKLO", 4, 1),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", 4, 4), ("HMMA.16816.F16 R4, R8, R12, R4", 4, 2), ("DADD R4, R6, R8", 4, 2),
        ("STS [R4], R5", 0, 0), ("STG.E desc[UR6][R4.64], R5", 0, 0), ("ISETP.NE.AND P0, PT, R4, RZ, PT", 0, 0),
        ("BAR.SYNC.DEFER_BLOCKING R4, R5", 0, 0), ("R2UR UR4, R5", 0, 0), ("IADD3 R4, P0, R5, R6, RZ", 4, 1),
        ("SYNCS.ARRIVE.TRANS64 RZ, [R4], R5", 0, 0), ("HGMMA.64x64x16.F32 R24, gdesc[UR4], RZ, !UPT", 24, 32),
        ("HGMMA.64x64x16.F16 R24, gdesc[UR4], RZ, !UPT", 24, 16), ("EXIT", 0, 0),
        ("F2I.U64.TRUNC R12, R12", 12, 2), ("F2I.FTZ.U32.TRUNC.NTZ R12, R12", 12, 1),
    ],
)  # fmt: skip
def test_the_registers_that_an_instruction_writes(text, first, count):
    assert sass.results(text) == range(first, first + count)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("EXIT", "NOP"), [(), ()]),
        (("@P0 EXIT", "EXIT"), [(1,), ()]),
        (("BRA 0x0",), [(0,)]),
        (("BRA.DIV UR4, 0x20", "EXIT", "EXIT"), [(1, 2), (), ()]),
        (("BRA !P2, 0x20", "EXIT", "EXIT"), [(1, 2), (), ()]),
        (("WARPSYNC.COLLECTIVE R4, 0x20", "EXIT", "EXIT"), [(1, 2), (), ()]),
        (("BSSY B0, 0x20", "BSYNC B0", "BSSY B0, 0x50", "BSYNC B0", "EXIT", "EXIT"), [(1,), (2,), (3,), (4, 5), (), ()]),
        (("BSSY B0, 0x20", "BSYNC B0", "BMOV.32 B0, R3", "BSSY B0, 0x40", "EXIT"), [(1,), (2, 4), (3,), (4,), ()]),
        (("BSSY B1, 0x30", "@P0 BRA 0x30", "BSYNC B1", "BRX R2 -0x10", "EXIT"), [(1,), (2, 3), (3,), (3,), ()]),
    ],
)
def test_the_successors_of_an_instruction(lines, wanted):
    (flow,) = sass.functions(listing(*lines)).values()
    assert list(successors(flow)) == wanted


def test_accesses_to_local_memory_are_found():
    text = listing("LDL R4, [R1]", "EXIT", name="a") + listing("LDS R4, [R1]", "EXIT", name="b")
    assert sass.local_accesses(text) == ("a",)
