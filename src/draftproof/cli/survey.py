"""A first pass over the input: how many lines, and by which keys they are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draftproof.cli.inputs import Item, Source, digest, item_of
from draftproof.errors import InputError


@dataclass(frozen=True, slots=True)
class Survey:
    """The keys of all lines, in order: about 250 bytes a line, whatever a line holds.

    A key is a line's content, so that a line is known again wherever it stands in a mended or
    longer file. Lines with the same content are numbered.
    """

    source: Source
    index_of: dict[str, int]

    @property
    def total(self) -> int:
        """Number of lines."""
        return len(self.index_of)

    def items(self) -> Iterator[Item]:
        """A second pass, with the keys of the first; nothing of it is kept.

        Raises InputError when the input is no longer what it was.
        """
        keys = iter(self.index_of)
        for index, row in enumerate(self.source.rows()):
            key = next(keys, "")
            if not key.startswith(digest(row)):
                raise InputError(
                    f"the input changed at {row.source} while it was read; --resume goes on"
                )
            yield item_of(row, index, key, self.source)
        if next(keys, None) is not None:
            raise InputError("the input became shorter while it was read; --resume goes on")


def survey(source: Source) -> Survey:
    """Read the input once. Raises InputError when it holds no line, or is broken as a file."""
    index_of: dict[str, int] = {}
    seen: dict[str, int] = {}
    for index, row in enumerate(source.rows()):
        key = digest(row)
        if key in index_of:
            seen[key] = seen.get(key, 1) + 1
            key = f"{key}-{seen[key]}"
        index_of[key] = index
    if not index_of:
        names = ", ".join(name for _, name in source.files)
        raise InputError(f"no prompts in {names or 'the input'}")
    return Survey(source, index_of)
