"""Bytes of input files as they come: decompressed, cut into lines, never a whole file at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO, Any, Protocol

from draftproof.errors import InputError

CHUNK = 1 << 18
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
UTF8_BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
BLANK = b" \t\r\n"


class Decompressor(Protocol):
    """Of one compressed frame, as zlib and zstandard have it."""

    @property
    def eof(self) -> bool:
        """Whether the frame is complete."""

    @property
    def unused_data(self) -> bytes:
        """What follows the frame."""

    def decompress(self, data: bytes, /) -> bytes:
        """What these bytes give."""


def chunks_of(file: IO[bytes], name: str) -> Iterator[bytes]:
    """The text of a file, decompressed where its first bytes say so, without a byte-order mark.

    Raises InputError for UTF-16 and for a compressed file that is damaged or cut off.
    """
    chunks = _decompressed(iter(lambda: file.read(CHUNK), b""), name)
    first = next(chunks, b"")
    while len(first) < len(UTF8_BOM) and (more := next(chunks, b"")):
        first += more
    if first.startswith(UTF16_BOMS):
        raise InputError(f"{name} is UTF-16; save it as UTF-8")
    yield first.removeprefix(UTF8_BOM)
    yield from chunks


def _decompressed(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    first = next(chunks, b"")
    whole = chain([first], chunks)
    if first.startswith(GZIP):
        return _frames(whole, lambda: zlib.decompressobj(31), name)
    if first.startswith(ZSTD):
        return _frames(whole, _zstd(name), name)
    if name.endswith((".gz", ".zst")):
        raise InputError(f"{name} is not compressed as its name says")
    return whole


def _zstd(name: str) -> Callable[[], Decompressor]:
    try:
        import zstandard
    except ImportError as error:
        raise InputError(f"{name} needs zstandard: pip install 'draftproof[bulk]'") from error
    return lambda: zstandard.ZstdDecompressor().decompressobj()


def _frames(chunks: Iterable[bytes], begin: Callable[[], Any], name: str) -> Iterator[bytes]:
    """A file may hold several frames, one after the other; it must end with the end of one."""
    frame: Decompressor = begin()
    clean = True
    for chunk in chunks:
        data = chunk
        while data:
            clean = False
            try:
                out = frame.decompress(data)
            except Exception as error:  # zlib and zstandard have errors of their own
                raise InputError(f"{name} is damaged: {error}") from error
            if out:
                yield out
            data = b""
            if frame.eof:
                data, frame, clean = frame.unused_data, begin(), True
    if not clean:
        raise InputError(f"{name} is cut off: its compressed data end too early")


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their ends, LF or CRLF; the last may lack one.

    On bytes: str.splitlines would also cut at U+2028, which JSON strings may hold.
    """
    parts: list[bytes] = []
    for chunk in chunks:
        head, *tail = chunk.split(b"\n")
        parts.append(head)
        for line in tail:
            yield b"".join(parts).removesuffix(b"\r")
            parts = [line]
    if last := b"".join(parts):
        yield last.removesuffix(b"\r")
