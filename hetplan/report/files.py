"""Reading and writing the files that commands name; `-` is stdin or stdout."""

import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from hetplan.errors import Mistake, SpecError

LARGEST_RECORD_BYTES = 256 * 2**20


def write_text_atomically(path: str | Path, text: str) -> None:
    """Write a file whole or not at all: readers see the old content or the new, never a part.

    A file keeps its mode, a link keeps pointing where it does, and what is not a regular file (a pipe, a device) is
    written to directly. Raises SpecError where it cannot be written.
    """
    if str(path) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise _mistake(path, "is a directory, not a file", "name a file in it")
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", newline="\n")
            return
        _replace(target, text)
    except FileNotFoundError:
        raise _mistake(path, "cannot be written: no such directory", "create the directory first") from None
    except PermissionError:
        raise _mistake(path, "cannot be written: permission denied", "choose another place") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _mistake(path, f"cannot be written: {reason.lower()}", "choose another place") from None


def check_writable(path: str | Path) -> None:
    """Raise the SpecError of `write_text_atomically`, as far as it can be told before there is anything to write."""
    if str(path) == "-":
        return
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise _mistake(path, "is a directory, not a file", "name a file in it")
    if not target.parent.is_dir():
        raise _mistake(path, "cannot be written: no such directory", "create the directory first")
    # A file is replaced, so that its directory must be writable; a pipe or a device is written to.
    if not os.access(target if target.exists() and not target.is_file() else target.parent, os.W_OK):
        raise _mistake(path, "cannot be written: permission denied", "choose another place")


def _replace(target: Path, text: str) -> None:
    """Write a temporary file beside the target and move it over."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _mode(target: Path) -> int:
    """Permissions of the file that is replaced, or those that a new one would get."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def read_text(path: str | Path) -> str:
    """The text of a record or plan. Raises SpecError where there is none to read."""
    try:
        if str(path) == "-":
            content = getattr(sys.stdin, "buffer", sys.stdin).read(LARGEST_RECORD_BYTES + 1)
        else:
            with open(path, "rb") as stream:
                content = stream.read(LARGEST_RECORD_BYTES + 1)
        if len(content) > LARGEST_RECORD_BYTES:
            raise _mistake(path, "larger than 256 MiB", "is this the right file?")
        return content if isinstance(content, str) else content.decode("utf-8-sig")
    except FileNotFoundError:
        raise _mistake(path, "no such file", "check the path") from None
    except IsADirectoryError:
        raise _mistake(path, "is a directory, not a file", "name a file in it") from None
    except PermissionError:
        raise _mistake(path, "cannot be read: permission denied", "check the permissions of the file") from None
    except UnicodeDecodeError:
        raise _mistake(path, "is not UTF-8 text", "is this the right file?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _mistake(path, f"cannot be read: {reason.lower()}", "check the path") from None


def _mistake(path: str | Path, message: str, hint: str) -> SpecError:
    return SpecError(Mistake(kind="file", message=message, hint=hint, file=shown_name(path)))


def shown_name(path: str | Path) -> str:
    """How messages call a file."""
    return "<stdin>" if str(path) == "-" else str(path)
