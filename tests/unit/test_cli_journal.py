"""What survives a kill, a full disk and a second process, and what a resumed run takes over."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from draftproof.cli import outfile
from draftproof.cli.inputs import Item
from draftproof.cli.journal import (
    Journal,
    changes,
    encode_line,
    meta_path,
    new_meta,
    superseded_path,
)
from draftproof.cli.records import OwnRecords
from draftproof.errors import InputError

SETTINGS = {"--max-new-tokens": 8, "--draft": None}
META = new_meta(SETTINGS)
KEYS = ["a", "b", "c"]


def journal_of(path: Path, keys: list[str] = KEYS, meta: Any = META, **how: bool) -> Journal:
    index_of = {key: index for index, key in enumerate(keys)}
    flags = {"resume": False, "overwrite": False} | how
    return Journal(path, meta, index_of, OwnRecords().key_of, **flags)


def item(index: int) -> Item:
    return Item(index=index, source=f"line {index + 1}")


def line(index: int, key: str = "", **more: Any) -> dict[str, Any]:
    return {"index": index, "key": key or KEYS[index], **more}


def written(path: Path, *records: dict[str, Any], torn: bytes = b"") -> Path:
    journal = journal_of(path)
    journal.open()
    for record in records:
        journal.write(item(record["index"]), record)
    journal.close()
    path.write_bytes(path.read_bytes() + torn)
    return path


def resumed(path: Path, keys: list[str] = KEYS, meta: Any = META, sort: bool = False) -> Journal:
    journal = journal_of(path, keys, meta, resume=True)
    try:
        journal.open()
        if sort:
            journal.sort()
    finally:
        journal.close()
    return journal


def indices(path: Path) -> list[int]:
    return [json.loads(text)["index"] for text in path.read_text().splitlines()]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_a_line_is_on_disk_when_write_returns(out: Path) -> None:
    journal = journal_of(out)
    journal.open()
    journal.write(item(2), {"index": 2, "text": "é"})
    assert out.read_bytes() == '{"index": 2, "text": "é"}\n'.encode()
    journal.close()


def test_what_was_asked_is_written_before_any_line(out: Path) -> None:
    journal = journal_of(out)
    journal.open()
    assert json.loads(meta_path(out).read_text()) == META
    journal.close()


# -- resuming


@pytest.mark.parametrize(
    "torn",
    [
        b'{"index": 1, "key": "b", "te',
        b'{"index": 1, "key": "b"}',  # whole, but whether more was to come cannot be known
        b"\x00\x00\x00\n",
        b'{"index": 1, "key": "b", "text": "\xc3',
        b'{"index": 1, "key": "b"\n',
        b'{"index": 1}\n',
    ],
)
def test_a_torn_line_is_dropped_and_its_request_open_again(out: Path, torn: bytes) -> None:
    written(out, line(0), torn=torn)
    journal = resumed(out)
    assert (journal.done, journal.found.dropped) == ({0}, 1)
    assert out.read_bytes() == encode_line(line(0))


def test_a_torn_line_in_the_middle_does_not_lose_the_lines_after_it(out: Path) -> None:
    written(out, line(0), torn=b'{"ind\n' + encode_line(line(2)))
    assert resumed(out).done == {0, 2}
    assert out.read_bytes() == encode_line(line(0)) + encode_line(line(2))


def test_a_request_done_twice_keeps_its_first_line(out: Path) -> None:
    written(out, line(0, text="first"), line(0, text="second"))
    assert resumed(out).found.dropped == 1
    assert json.loads(out.read_text())["text"] == "first"


def test_failed_lines_are_done_again(out: Path) -> None:
    written(out, line(0), line(1, error="too long"), line(2))
    journal = resumed(out)
    assert (journal.done, journal.found.failed) == ({0, 2}, 1)
    assert indices(out) == [0, 2]


def test_resuming_appends(out: Path) -> None:
    written(out, line(0))
    journal = journal_of(out, resume=True)
    journal.open()
    journal.write(item(1), line(1))
    journal.close()
    assert indices(out) == [0, 1]


def test_resuming_without_a_file_starts(out: Path) -> None:
    assert resumed(out).done == set()
    assert out.exists()


def test_seeds_and_the_time_are_taken_over(out: Path) -> None:
    written(out, line(0))
    later = new_meta(SETTINGS) | {"created": 1}
    assert later["seed"] != META["seed"]
    assert resumed(out, meta=later).meta == META
    assert json.loads(meta_path(out).read_text()) == META


def test_an_input_that_grew_and_was_reordered(out: Path) -> None:
    written(out, line(0, text="A"), line(2, text="C"))
    assert resumed(out, ["new", "c", "b", "a"]).done == {1, 3}
    rows = [json.loads(text) for text in out.read_text().splitlines()]
    assert [(row["key"], row["index"], row["text"]) for row in rows] == [
        ("a", 3, "A"),
        ("c", 1, "C"),
    ]


def test_lines_of_mended_requests_are_moved_aside_and_never_lost(out: Path) -> None:
    written(out, line(0, text="A"), line(1, text="B"))
    journal = resumed(out, ["a", "mended", "c"])
    assert (journal.done, len(journal.found.superseded)) == ({0}, 1)
    assert indices(out) == [0]
    assert json.loads(superseded_path(out).read_text())["text"] == "B"
    resumed(out, ["other", "mended", "a"])
    assert indices(out) == [2]


def test_an_output_of_another_input_is_refused(out: Path) -> None:
    before = written(out, line(0), line(1)).read_bytes()
    with pytest.raises(InputError, match="none of its 2 lines belongs"):
        resumed(out, ["x", "y"])
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"--max-new-tokens": 9, "--draft": None}, "--max-new-tokens was 8, now 9"),
        ({"--max-new-tokens": 8, "--draft": "d"}, '--draft was not given, now "d"'),
    ],
)
def test_another_run_is_refused_by_what_changed(
    out: Path, settings: dict[str, Any], named: str
) -> None:
    before = written(out, line(0), torn=b"torn").read_bytes()
    with pytest.raises(InputError, match=named):
        resumed(out, meta=new_meta(settings))
    assert out.read_bytes() == before
    assert json.loads(meta_path(out).read_text()) == META


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_without_the_sidecar_a_file_is_not_trusted(out: Path, content: str | None) -> None:
    written(out, line(0))
    meta_path(out).unlink()
    if content is not None:
        meta_path(out).write_text(content)
    with pytest.raises(InputError, match=r"out\.jsonl\.meta\.json, .* missing or damaged"):
        resumed(out)


def test_the_same_run_has_no_changes_also_after_json() -> None:
    assert changes(json.loads(json.dumps(META)), META) == []
    assert changes(META | {"format": 0}, META)


# -- in order


def test_sorting_puts_lines_in_the_order_of_the_input(out: Path) -> None:
    written(out, line(2), line(0, text="é"), line(1))
    resumed(out, sort=True)
    assert indices(out) == [0, 1, 2]
    resumed(out, sort=True)
    assert indices(out) == [0, 1, 2]
    assert sorted(out.parent.iterdir()) == [out, meta_path(out)]


# -- what is never touched


def test_an_output_that_is_not_empty_is_never_replaced_unasked(out: Path) -> None:
    written(out, line(0))
    with pytest.raises(InputError, match="--resume goes on with it"):
        journal_of(out)
    assert indices(out) == [0]
    journal = journal_of(out, overwrite=True)
    journal.open()
    journal.close()
    assert out.read_bytes() == b""


def test_looking_changes_no_file(out: Path) -> None:
    written(out, line(0), torn=b"{")
    before = out.read_bytes(), meta_path(out).read_bytes()
    journal_of(out, overwrite=True, meta=new_meta({})).close()
    journal_of(out, resume=True).close()
    assert (out.read_bytes(), meta_path(out).read_bytes()) == before


def test_a_file_made_for_nothing_is_removed(out: Path) -> None:
    journal_of(out).close()
    assert not out.exists()
    out.touch()
    journal_of(out).close()
    assert out.exists()


def test_what_others_write_meanwhile_is_not_lost(out: Path) -> None:
    journal = journal_of(out)
    out.write_text("precious\n")
    with pytest.raises(InputError, match="was changed by somebody else"):
        journal.open()
    journal.close()
    assert out.read_text() == "precious\n"
    journal = journal_of(out, overwrite=True)
    out.unlink()
    out.write_text("another file\n")
    with pytest.raises(InputError, match="was changed by somebody else"):
        journal.open()
    journal.close()
    assert out.read_text() == "another file\n"


def test_two_runs_on_one_output_are_refused(out: Path) -> None:
    first = journal_of(out)
    for how in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(InputError, match="is being written by another run"):
            journal_of(out, **how)
    first.open()
    first.write(item(0), line(0))
    with pytest.raises(InputError, match="another run"):
        journal_of(out, resume=True)
    first.close()
    second = journal_of(out, resume=True)
    second.open()
    second.write(item(2), line(2))
    second.write(item(1), line(1))
    second.sort()  # replaces the file, which stays locked
    with pytest.raises(InputError, match="another run"):
        journal_of(out, overwrite=True)
    second.close()
    assert indices(out) == [0, 1, 2]


def test_the_output_must_be_a_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place, words in (
        (tmp_path, "is a folder"),
        (pipe, "is no regular file"),
        (Path("/dev/null"), "is no regular file"),
        (tmp_path / "gone" / "out", "there is no folder"),
    ):
        for how in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(InputError, match=words):
                journal_of(place, **how)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_keeps_its_place(tmp_path: Path) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(real)
    written(link, line(1), line(0))
    resumed(link, sort=True)
    assert link.is_symlink()
    assert indices(real) == [0, 1]


def test_the_mode_of_a_file_is_kept(out: Path) -> None:
    written(out, line(1), line(0))
    out.chmod(0o640)
    resumed(out, sort=True)
    assert out.stat().st_mode & 0o777 == 0o640


# -- a full disk


def full_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Writes succeed for so many bytes in all, as on a disk that fills up."""
    left = [room]

    def write_all(fd: int, data: bytes, offset: int) -> int:
        fits = min(left[0], len(data))
        os.lseek(fd, offset, os.SEEK_SET)
        os.write(fd, data[:fits])
        left[0] -= fits
        if fits < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return fits

    monkeypatch.setattr(outfile, "write_all", write_all)


def test_a_full_disk_costs_no_line_and_leaves_none_torn(
    monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    journal = journal_of(out)
    journal.open()
    full_after(monkeypatch, len(encode_line(line(0))) + 9)
    journal.write(item(0), line(0))
    with pytest.raises(InputError, match="No space left on device; 1 finished lines are safe"):
        journal.write(item(1), line(1))
    journal.close()
    assert out.read_bytes() == encode_line(line(0))
    monkeypatch.undo()
    assert resumed(out).done == {0}


def test_sorting_on_a_full_disk_leaves_the_lines_as_they_were(
    monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    before = written(out, line(1), line(0)).read_bytes()
    full_after(monkeypatch, 30)
    with pytest.raises(InputError, match="--resume --ordered sorts them"):
        resumed(out, sort=True)
    assert out.read_bytes() == before
    assert sorted(out.parent.iterdir()) == [out, meta_path(out)]


def test_lone_surrogates_do_not_lose_a_line() -> None:
    assert json.loads(encode_line({"prompt": "\ud800"})) == {"prompt": "\ud800"}
