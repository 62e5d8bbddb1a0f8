"""What survives a kill, and what a resumed run refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftproof.cli.inputs import Item
from draftproof.cli.journal import Journal, changes, encode_line, fingerprint, meta_path
from draftproof.errors import InputError

ITEMS = [Item(index=i, source=f"line {i + 1}", prompt="abc"[i]) for i in range(3)]
META = fingerprint(ITEMS, {"--max-new-tokens": 8, "--draft": None})


def opened(path: Path, **how: bool) -> Journal:
    journal = Journal(path, META, **({"resume": False, "overwrite": False} | how))
    journal.open()
    return journal


def written(path: Path, *records: dict[str, Any], torn: bytes = b"") -> Path:
    journal = opened(path)
    for record in records:
        journal.write(record)
    journal.close()
    path.write_bytes(path.read_bytes() + torn)
    return path


def resumed(path: Path, meta: dict[str, Any] = META) -> Journal:
    journal = Journal(path, meta, resume=True, overwrite=False)
    journal.open()
    journal.close()
    return journal


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_a_line_is_on_disk_when_write_returns(out: Path) -> None:
    journal = opened(out)
    journal.write({"index": 2, "text": "é"})
    assert out.read_bytes() == '{"index": 2, "text": "é"}\n'.encode()
    journal.close()


def test_what_was_asked_is_written_before_any_line(out: Path) -> None:
    journal = opened(out)
    assert json.loads(meta_path(out).read_text()) == META
    journal.close()


@pytest.mark.parametrize(
    "torn",
    [
        b'{"index": 1, "te',
        b'{"index": 1}',  # whole, but whether more was to come cannot be known
        b"\x00\x00\x00\n",
        b'{"index": 1, "text": "\xc3',
        b'{"index": 1\n',
    ],
)
def test_a_torn_line_is_dropped_and_its_request_open_again(out: Path, torn: bytes) -> None:
    written(out, {"index": 0}, torn=torn)
    journal = resumed(out)
    assert (journal.done, journal.dropped) == ({0}, 1)
    assert out.read_bytes() == b'{"index": 0}\n'


def test_a_torn_line_in_the_middle_does_not_lose_the_lines_after_it(out: Path) -> None:
    written(out, {"index": 0}, torn=b'{"ind\n{"index": 2}\n')
    assert resumed(out).done == {0, 2}
    assert out.read_bytes() == b'{"index": 0}\n{"index": 2}\n'


@pytest.mark.parametrize("line", [{"index": 0}, {"index": 3}, {"index": -1}, {"index": True}, {}])
def test_a_line_of_no_open_request_is_dropped(out: Path, line: dict[str, Any]) -> None:
    written(out, {"index": 0, "text": "first"}, line)
    journal = resumed(out)
    assert (journal.done, journal.dropped) == ({0}, 1)
    assert out.read_bytes() == b'{"index": 0, "text": "first"}\n'


def test_failed_lines_count_as_done_and_as_failed(out: Path) -> None:
    written(out, {"index": 0}, {"index": 1, "error": "too long"})
    journal = resumed(out)
    assert (journal.done, journal.failed) == ({0, 1}, {1})


def test_resuming_appends(out: Path) -> None:
    written(out, {"index": 0})
    journal = opened(out, resume=True)
    journal.write({"index": 1})
    journal.close()
    assert out.read_bytes() == b'{"index": 0}\n{"index": 1}\n'


def test_resuming_without_a_file_starts(out: Path) -> None:
    assert resumed(out).done == set()
    assert out.exists()


def test_an_output_that_is_not_empty_is_never_replaced_unasked(out: Path) -> None:
    written(out, {"index": 0})
    with pytest.raises(InputError, match="--resume goes on with it"):
        Journal(out, META, resume=False, overwrite=False)
    assert out.read_bytes() == b'{"index": 0}\n'
    opened(out, overwrite=True).close()
    assert out.read_bytes() == b""


def test_looking_changes_no_file(out: Path) -> None:
    written(out, {"index": 0}, torn=b"{")
    before = out.read_bytes(), meta_path(out).read_bytes()
    other = META | {"requests": 1}
    Journal(out, other, resume=False, overwrite=True).close()
    Journal(out, META, resume=True, overwrite=False).close()
    assert (out.read_bytes(), meta_path(out).read_bytes()) == before


@pytest.mark.parametrize(
    ("items", "settings", "named"),
    [
        (ITEMS, {"--max-new-tokens": 9, "--draft": None}, "--max-new-tokens was 8, now 9"),
        (ITEMS, {"--max-new-tokens": 8, "--draft": "d"}, '--draft was not given, now "d"'),
        (ITEMS[:2], META["settings"], "the input had 3 prompts, now 2"),
        ([*ITEMS[:2], Item(index=2, source="line 3", prompt="C")], META["settings"], "content"),
    ],
)
def test_another_run_is_refused_by_what_changed(
    out: Path, items: list[Item], settings: dict[str, Any], named: str
) -> None:
    written(out, {"index": 0}, torn=b"torn")
    before = out.read_bytes()
    with pytest.raises(InputError, match=named):
        resumed(out, fingerprint(items, settings))
    assert out.read_bytes() == before
    assert json.loads(meta_path(out).read_text()) == META


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_without_the_sidecar_a_file_is_not_trusted(out: Path, content: str | None) -> None:
    written(out, {"index": 0})
    meta_path(out).unlink()
    if content is not None:
        meta_path(out).write_text(content)
    with pytest.raises(InputError, match=r"out\.jsonl\.meta\.json, .* missing or damaged"):
        resumed(out)


def test_the_same_run_has_no_changes_also_after_json() -> None:
    assert changes(json.loads(json.dumps(META)), META) == []
    assert changes(META | {"format": 0}, META)


def test_lone_surrogates_do_not_lose_a_line() -> None:
    assert json.loads(encode_line({"prompt": "\ud800"})) == {"prompt": "\ud800"}
    fingerprint([Item(index=0, source="line 1", prompt="\ud800")], {})
