"""Files that no other user can replace: private modes, reads without following links, syncs in order."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from opfacade import env
from opfacade.base import regular_files
from opfacade.errors import CacheError, CacheSecurityError

MAX_BYTES = 512 << 20  # maximum bytes of a file in an entry
_HINT = "Set OPFACADE_CACHE_DIR. [OPF-J020]"


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents, each with mode 0700; makedirs(mode) would apply it only to the last one."""
    for part in (*reversed(directory.parents), directory):
        try:
            if not part.exists():
                part.mkdir(mode=0o700)
                part.chmod(0o700)  # a umask may have removed even the owner's bits
        except FileExistsError:
            continue
        except OSError as error:
            raise CacheError.of(f"cannot create {part}: {error.strerror}. {_HINT}", error) from error


def require_private(base: Path, *inside: Path) -> None:
    """Raise CacheSecurityError if a user other than this one and root could replace files in the cache directory `base`.

    Every parent directory is checked, also through links; `inside` are directories of the cache, where links are refused.
    OPFACADE_ALLOW_SHARED_CACHE=1 accepts any owner and mode. A missing directory is accepted, because it is created with
    private modes.
    """
    for path in dict.fromkeys((base, Path(os.path.realpath(base)))):
        for part in (*reversed(path.parents), path):
            _judge(part, may_be_link=True)
    for part in inside:
        _judge(part, may_be_link=False)


def read_private(path: Path, most: int = MAX_BYTES) -> bytes:
    """The bytes, at most `most`, of a regular file that only this user and root may write. Raises OSError otherwise."""
    with regular_files.open_regular(path, most, follow=False) as file:
        if (why := exposed(os.fstat(file.fileno()))) and not env.allow_shared_cache():
            raise OSError(errno.EPERM, why, str(path))
        return regular_files.read_bounded(file, most, path)


def write_private(path: Path, data: bytes) -> None:
    """Write a new file with mode 0600, independent of the umask."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        os.fchmod(fd, 0o600)
        file.write(data)


def close_to_others(directory: Path) -> None:
    """Remove other users' permissions from files that compilers wrote to `directory`, independent of the umask."""
    for path in directory.iterdir():
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def exposed(info: os.stat_result) -> str:
    """The reason why another user could write a file or directory; empty if none can."""
    if info.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {info.st_uid}, neither you ({os.geteuid()}) nor root"
    sticky_directory = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX
    if info.st_mode & 0o022 and not sticky_directory and not stat.S_ISLNK(info.st_mode):
        return f"is writable for others (mode {stat.S_IMODE(info.st_mode):04o})"
    return ""


def fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _judge(part: Path, may_be_link: bool) -> None:
    try:
        info = part.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise CacheError.of(f"cannot examine {part}: {error.strerror}. {_HINT}", error) from error
    if stat.S_ISLNK(info.st_mode) and not may_be_link:
        raise _unsafe(f"{part} is a symbolic link, which the cache never creates. Remove it: rm {part}", part)
    why = exposed(info)
    if why and not env.allow_shared_cache():
        run = f"chmod go-w {part}" if "writable" in why else f"chown {os.geteuid()} {part}"
        raise _unsafe(f"{part} {why}, who could replace kernels. Run: {run}, or set OPFACADE_CACHE_DIR", part)


def _unsafe(message: str, part: Path) -> CacheSecurityError:
    return CacheSecurityError.of(f"{message}. [OPF-J023]", OSError(errno.EPERM, "unsafe", str(part)))
