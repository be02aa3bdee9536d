"""Faults in the end of groups: when a close counts as a failure, and which threads remain."""

from tests.mutation.mutant import host

MAILBOX, ROUNDS = "distributed/mailbox.py", "distributed/rounds.py"
ENDS = "tests/distributed/test_group.py -k equal_calls"

FAULTS = (
    host("ends: a close after equal calls is a failure", "distributed/group.py",
         "rounds.bad_news(self._mail, self._call)", "rounds.bad_news(self._mail)", ENDS),
    host("ends: a close during a call is none", ROUNDS,
         "found[0].kind == BYE and found[0].call != calls", "found[0].kind == BYE and calls is not None",
         "tests/distributed/test_group.py -k different_calls"),
    host("ends: connections stay where a peer never closes", MAILBOX,
         "if mailbox.listens():", "if not mailbox.listens():", ENDS),
)  # fmt: skip
