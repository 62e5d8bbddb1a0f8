"""A regular file that one process appends to: locked, never torn, never half replaced."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from draftproof.errors import InputError


class OutFile:
    """An output file, open and locked from the beginning, so that no other run can begin with it.

    Nothing is changed before `truncate`, `replace` or `append`. A file that was not there before
    is removed by `close` unless one of them was called.
    """

    def __init__(self, path: Path, *, option: str = "--output") -> None:
        self.path = Path(os.path.realpath(path))  # a link keeps its place; what it names is written
        self._refuse_others(path, option)
        self._made = not self.path.exists()
        self._fd = self._locked()
        self._state = self._stat()
        self._changed = False

    def _refuse_others(self, path: Path, option: str) -> None:
        if not self.path.parent.is_dir():
            raise InputError(f"{option} {path}: there is no folder {path.parent}")
        if not self.path.exists():
            return
        if self.path.is_dir():
            raise InputError(f"{option} {path} is a folder; name a file in it")
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise InputError(
                f"{option} {path} is no regular file; without {option} lines go to stdout"
            )

    def _locked(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(fd, self.path)
            there = os.stat(self.path) if self.path.exists() else None
            mine = os.fstat(fd)
            if there is None or (there.st_ino, there.st_dev) != (mine.st_ino, mine.st_dev):
                raise _in_use(self.path)  # it was replaced between the two calls
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _stat(self) -> tuple[int, int, int]:
        found = os.fstat(self._fd)
        return found.st_ino, found.st_size, found.st_mtime_ns

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._fd).st_size

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line with its offset; the last may lack its end."""
        with self.path.open("rb") as file:  # with a position of its own
            offset = 0
            for line in file:
                yield offset, line
                offset += len(line)

    def read(self, offset: int, length: int) -> bytes:
        """A part of the file."""
        os.lseek(self._fd, offset, os.SEEK_SET)
        parts = []
        while length > 0 and (part := os.read(self._fd, length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def refuse_changes(self) -> None:
        """Raises InputError if anybody wrote to the file since it was opened here."""
        there = os.stat(self.path) if self.path.exists() else None
        if there is None or self._stat() != self._state or there.st_ino != self._state[0]:
            raise InputError(f"{self.path} was changed by somebody else meanwhile; nothing is lost")

    def truncate(self, size: int) -> None:
        """Keep the first bytes only."""
        self._changed = True
        os.ftruncate(self._fd, size)

    def append(self, line: bytes) -> None:
        """Write a line at the end, whole or not at all. Raises OSError, as when a disk is full."""
        self._changed = True
        end = self.size
        try:
            write_all(self._fd, line, end)
        except BaseException:  # also Ctrl-C in the middle of a long line
            os.ftruncate(self._fd, end)
            raise

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put other lines in place of all, in one step: a kill leaves the old or the new file."""
        temporary = self.path.with_name(f".{self.path.name}.draftproof.tmp")
        mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)
        try:
            _lock(fd, self.path)  # before it has the name, so that nobody gets in between
            end = 0
            for line in lines:
                end += write_all(fd, line, end)
            os.fchmod(fd, mode)
            os.fsync(fd)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise
        old, self._fd, self._changed = self._fd, fd, True
        os.close(old)

    def close(self) -> None:
        """Give the file free; one that was made for nothing is removed."""
        if self._fd < 0:
            return
        if self._made and not self._changed and self.size == 0:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        elif self._changed:
            os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1


def write_all(fd: int, data: bytes, offset: int) -> int:
    """Write all of it at a place, however many calls that takes."""
    view = memoryview(data)
    done = 0
    os.lseek(fd, offset, os.SEEK_SET)
    while done < len(view):
        done += os.write(fd, view[done:])
    return done


def _lock(fd: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not POSIX: nothing guards against a second process
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use(path) from error


def _in_use(path: Path) -> InputError:
    return InputError(f"{path} is being written by another run; give each its own --output")
