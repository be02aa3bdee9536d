"""Faults in the text of messages and commands, and in expressions: tests without a GPU must see them."""

from tests.mutation.mutant import cpu

MESSAGES, EXPRESSIONS, COMMANDS = (
    "tests/core/test_messages.py tests/test_issue.py",
    "tests/plans/test_expression.py",
    "tests/cli/test_first_use.py",
)

MESSAGE_FAULTS = (
    cpu("messages: only the first issue is told", "opfacade/issue.py", "issues[1:MAX_TOLD]", "issues[1:1]", MESSAGES),
    cpu(
        "messages: members of a union are told apart",
        "opfacade/core/refusals.py",
        "(issue.argument, issue.got) if of_union",
        "(issue.argument, str(i)) if of_union",
        MESSAGES,
    ),
    cpu(
        "messages: names of other libraries are not known",
        "opfacade/core/construction.py",
        "did_you_mean(name, fields, cls.elsewhere)",
        "did_you_mean(name, fields)",
        MESSAGES,
    ),
    cpu(
        "expressions: an equality is silent",
        "opfacade/plans/_attention/expression.py",
        '            _no_operator("==", "equal(a, b)")\n',
        "            return False\n",
        EXPRESSIONS,
    ),
    cpu(
        "expressions: a right operand loses its brackets",
        "opfacade/plans/_attention/infix.py",
        "{_at_least(node.args[1], rank + 1)}",
        "{_at_least(node.args[1], rank)}",
        EXPRESSIONS,
    ),
    cpu(
        "expressions: the maximum of a variant forgets NaN",
        "opfacade/words.py",
        "return scores.apply(op, *args) if of_scores",
        'return scores.apply(op.removesuffix("imum"), *args) if of_scores',
        "tests/programs/test_words.py",
    ),
    cpu(
        "expressions: a table says of every operation that NaN stays",
        "opfacade/tools/operation_table.py",
        'if found == {"NaN", "the other"}:',
        "if False:",
        "tests/programs/test_words.py",
    ),
    cpu(
        "commands: an unknown op has no hint",
        "opfacade/select/descriptor_text.py",
        'hint = did_you_mean(op, types) if isinstance(op, str) else ""',
        'hint = ""',
        COMMANDS,
    ),
    cpu(
        "commands: a pace forgets what is left",
        "opfacade/base/progress.py",
        "max(self._total - self._done, 0)",
        "self._total",
        COMMANDS,
    ),
    cpu(
        "installation: a wheel that is gone is named",
        "opfacade/base/installation.py",
        'if origin.startswith("file:") and not Path',
        'if origin.startswith("nothing:") and not Path',
        "tests/base/test_installation.py",
    ),
    cpu(
        "manifest: nothing is frozen without a word",
        "opfacade/select/manifest.py",
        "    if not found:\n        hint",
        "    if False:\n        hint",
        "tests/select/test_manifest.py",
    ),
    cpu(
        "messages: a device's name is no architecture",
        "opfacade/core/target.py",
        "_DEVICES.get(str(text).lower(), 0)",
        "0",
        MESSAGES,
    ),
    cpu(
        "messages: a hint leads into another error",
        "opfacade/core/setting_hints.py",
        "    except DescriptorError:\n        return False\n",
        "    except DescriptorError:\n        return True\n",
        "tests/core/test_can_implement.py",
    ),
    cpu(
        "messages: a near name that means something else is offered",
        "opfacade/base/did_you_mean.py",
        'if other == "":',
        "if False:",
        MESSAGES,
    ),
    cpu(
        "messages: a short form of a requirement has no names",
        "opfacade/core/preference.py",
        "    if value not in _SHORT:\n",
        "    if value not in _SHORT:\n        return value\n",
        MESSAGES,
    ),
)
