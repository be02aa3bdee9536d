"""A fake CUDA toolkit: its nvcc takes no time, counts its calls, and behaves as the file `mode` next to it states.

All other parts of a build are real: the lock, ninja, g++, the link, the rename. `mode` is read at each call: sleep N | fail |
nothing (exit 0 without output file) | spam (endless output) | full (report a full disk) | signal.
"""

import contextlib
import os
import subprocess
import time
import traceback
from pathlib import Path

import jinja2  # noqa: F401  imported here, once, and not by every forked child
import ninja  # noqa: F401
import tvm_ffi  # noqa: F401

_NVCC = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>
int main(int argc, char** argv) {
  char self[4096] = "";
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 8;
  std::string home(self), out, mode;
  home = home.substr(0, home.rfind("/bin/"));
  for (int i = 1; i + 1 < argc; i++) if (!strcmp(argv[i], "-o")) out = argv[i + 1];
  int log = open((home + "/calls").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  std::string line = std::to_string(getpid()) + "\n";
  if (write(log, line.data(), line.size()) < 0) return 9;
  if (FILE* f = fopen((home + "/mode").c_str(), "r")) { char b[64] = ""; if (fgets(b, 64, f)) mode = b; fclose(f); }
  if (mode.rfind("sleep ", 0) == 0) usleep(1e6 * atof(mode.c_str() + 6));
  if (mode == "fail") { fprintf(stderr, "x.cu(1): error: no such thing\n"); return 2; }
  if (mode == "full") { fprintf(stderr, "fatal error: No space left on device\n"); return 2; }
  if (mode == "spam") for (;;) puts("x.cu(1): warning: again and again and again and again and again");
  if (mode == "nothing") return 0;
  FILE* f = fopen(out.c_str(), "w");
  if (!f) return 3;
  fputs("not a cubin", f);
  return fclose(f);
}
"""


def compile_cxx(source, out, *flags):
    subprocess.run(["g++", "-x", "c++", "-", "-o", str(out), *flags], input=source.encode(), check=True)


def make_toolkit(home):
    """A toolkit in the directory `home`; the directory may be copied."""
    for folder in ("bin", "include"):
        (home / folder).mkdir(parents=True)
    for header in ("cuda.h", "cuda_runtime.h"):
        (home / "include" / header).write_text("")
    compile_cxx(_NVCC, home / "bin/nvcc")


class Toolkit:
    """The fake toolkit of a test."""

    def __init__(self, home):
        self.home, self.nvcc = home, home / "bin/nvcc"

    def mode(self, text):
        (self.home / "mode").write_text(text)

    def calls(self):
        """The process ids of all calls so far."""
        try:
            return [int(line) for line in (self.home / "calls").read_text().split()]
        except FileNotFoundError:
            return []


def start(function, *args):
    """Forks a process that runs a function; its exit status is 0 unless the function raises."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def join(pids):
    """The exit statuses of processes; a killed process has minus the signal number."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def alive(pid):
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def working_below(directory):
    """The programs whose working directory is `directory`, that is, the compilers of builds in it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(place / "cwd").startswith(str(directory)):
                found.append((int(place.name), (place / "comm").read_text().strip()))
    return found


def eventually(condition, seconds=120.0):
    """Waits until `condition()` is true, and returns its last value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value
