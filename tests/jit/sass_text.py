"""Compares a disassembler's reading of a cubin with the package's decoding of its words."""

from opfacade.jit import sass as inspect
from opfacade.jit.sass import flow as sass_flow
from opfacade.jit.sass import hazards as sass
from opfacade.jit.sass import opcodes as sass_opcodes
from opfacade.jit.sass import words as sass_words


def assert_read_alike(cubin, tools):
    """Asserts that every instruction has a known name, writes only known registers, and has known successors."""
    told = sass.functions(inspect.disassembly(cubin, tools))
    words = sass_words.functions(cubin.read_bytes())
    assert told.keys() == words.keys()
    for name, flow in told.items():
        assert [instruction.address for instruction in flow.instructions] == [16 * at for at in range(len(words[name]))]
        ways = zip(flow.instructions, words[name], sass_flow.successors(flow), followed(words[name]), strict=True)
        for instruction, word, wanted, found in ways:
            assert instruction.body.startswith(sass_opcodes.NAMES[sass_opcodes.opcode(word)]), instruction
            assert set(sass.results(instruction.text)) <= set(sass_opcodes.written(word)), instruction
            # nvdisasm names called functions, which the check of the package does not look up.
            assert set(found) >= set(wanted) if instruction.body.startswith("CALL") else found == wanted, instruction


def followed(words):
    lines = (f".L_{at:x}:\n/*{16 * at:04x}*/ {sass_words.instruction(at, word)} ;" for at, word in enumerate(words))
    return sass_flow.successors(sass.functions("\n".join([".text.k:", *lines]))["k"])
