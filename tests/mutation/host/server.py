"""Faults in long-running servers: growing sequences, and state shared by calls and processes."""

from tests.mutation.mutant import host

FILE, SHARED = "tests/telemetry/test_file.py", "tests/core/test_device_tensors.py"
MEMO = "tests/integrations/test_pass_memo.py"
GROW = "plans/_attention/growth.py"
GROWTH, COMPAT = "tests/integrations/test_growth.py", "tests/compat/test_growth.py"

FAULTS = (
    host("adapters: bounds grow with the sequence", GROW, "most = longest(kv_len)", "most = max(kv_len, 1)",
         f"{GROWTH} -k dense"),
    host("adapters: a bound lies below the length", GROW, "bound < kv_len", "bound * 2 < kv_len",
         f"{GROWTH} -k never_lies"),
    host("compat: bounds grow with the requests", "compat/attending.py", 'kv_split == "auto" and not self.fixed',
         "self.fixed", f"{COMPAT} -k kvcache"),
    host("compat: the length of a dense cache is a fact", "compat/attending.py", "any_page_size=page_grows",
         "any_page_size=False", f"{COMPAT} -k flash_attn_func"),
    host("compat: more keys split more", "compat/attending.py",
         'if ask.kv_split != "auto" or requests < rows >= kv_rows:', "if True:", f"{COMPAT} -k varlen"),
    host("telemetry: a torn line takes the one behind it with it", "telemetry/file.py", "if at > 0 else (line,)",
         "if at < 0 else (line,)", f"{FILE} -k torn_line"),
    host("passes: what a capture made is held after its pass", "integrations/pass_memo.py",
         "        self._local.drop_captured()\n", "", f"{MEMO} -k capture"),
    host("passes: a value is made in the pool of a graph tree", "core/device_tensors.py", "_TREES not in sys.modules or",
         "True or", f"{SHARED} -k pass_shares"),
    host("passes: a value is read before it is complete", "core/device_tensors.py",
         "            current.wait_stream(stream)\n", "", f"{SHARED} -k pass_shares"),
    host("passes: a value is computed before its sources are complete", "core/device_tensors.py",
         "            stream.wait_stream(current)\n", "", f"{SHARED} -k pass_shares"),
    host("passes: memory of a value goes back while it is read", "core/device_tensors.py",
         "                read_by(tensor, current)\n", "                pass\n", f"{SHARED} -k pass_shares"),
)  # fmt: skip
