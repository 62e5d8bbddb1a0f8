"""Every shape of input, and what is wrong with a line, by its line number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.cli.inputs import parse_lines, read_items
from draftproof.errors import InputError


def only(line: str) -> object:
    (item,) = parse_lines(line.encode(), suffix=".jsonl")
    assert item.error is None, item.error
    return item.prompt


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ('{"prompt": "a b"}', "a b"),
        ('{"prompt": [1, 2]}', [1, 2]),
        ('{"text": "a"}', "a"),
        ('{"question_id": 81, "category": "qa", "turns": ["first", "second"]}', "first"),
        ('{"messages": [{"role": "user", "content": "x"}]}', [{"role": "user", "content": "x"}]),
    ],
)
def test_shapes_of_a_json_line(line: str, prompt: object) -> None:
    assert only(line) == prompt


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"prompt": "a"', "bad JSON"),
        ("[1, 2]", "expected a JSON object"),
        ('{"prompts": "a"}', "none of prompt, messages, turns, text"),
        ('{"prompt": "a", "text": "b"}', "ambiguous: the line holds prompt and text"),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"prompt": []}', "the prompt is empty"),
        ('{"turns": []}', "must be text"),
        ('{"turns": "abc"}', "must be text"),
        ('{"prompt": 7}', "must be text"),
        ('{"prompt": [1, "a"]}', "token ids only"),
        ('{"prompt": [1, true]}', "token ids only"),
        ('{"messages": [{"content": "x"}]}', "objects with a role"),
        ('{"messages": "x"}', "objects with a role"),
        ('{"prompt": "a", "max_new_tokens": -1}', "max_new_tokens must be"),
        ('{"prompt": "a", "max_new_tokens": "9"}', "max_new_tokens must be"),
        ("[" * 100_000, "bad JSON"),
    ],
)
def test_a_bad_line_is_an_item_with_an_error(line: str, error: str) -> None:
    (item,) = parse_lines(line.encode(), suffix=".jsonl")
    assert item.source == "line 1"
    assert error in (item.error or "")


def test_lines_keep_their_numbers_past_blank_lines_and_windows_endings() -> None:
    data = b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \r\noops\r\n{"prompt": "b", "id": 7}'
    items = parse_lines(data, suffix=".jsonl")
    assert [(i.index, i.source, i.prompt) for i in items] == [
        (0, "line 1", "a"),
        (1, "line 4", None),
        (2, "line 5", "b"),
    ]
    assert items[2].labels == {"id": 7}


def test_text_lines_lose_nothing_but_the_line_ending() -> None:
    items = parse_lines(b"\xef\xbb\xbf  two  words \r\n\n{not json}\n", suffix=".txt")
    assert [item.prompt for item in items] == ["  two  words ", "{not json}"]


def test_unicode_line_separators_do_not_end_a_line() -> None:
    text = "one\u2028line\x0bstill\x85one"
    assert [i.prompt for i in parse_lines(text.encode(), suffix=".txt")] == [text]
    line = json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False)
    assert only(line) == "a\u2028b"


@pytest.mark.parametrize(
    ("data", "prompt"), [(b'\n {"text": "a"}\n', "a"), (b"plain\n", "plain"), (b"[1]", "[1]")]
)
def test_without_a_known_suffix_the_first_brace_decides(data: bytes, prompt: str) -> None:
    assert [item.prompt for item in parse_lines(data)] == [prompt]


def test_bytes_that_are_not_utf8_spoil_only_their_line() -> None:
    items = parse_lines(b"good\nbad \xff\nfine\n", suffix=".txt")
    assert [item.error for item in items] == [None, "not UTF-8 (byte 5)", None]


def test_utf16_is_named() -> None:
    with pytest.raises(InputError, match="UTF-16"):
        parse_lines("text".encode("utf-16"))


def test_a_folder_holds_one_prompt_per_text_file(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbftwo\r\nlines\r\n")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "c.txt").write_text("")
    (tmp_path / "d.txt").write_bytes(b"\xff")
    (tmp_path / "notes.md").write_text("not a prompt")
    items = read_items(None, str(tmp_path))
    assert [(i.labels["id"], i.prompt) for i in items if not i.error] == [
        ("a.txt", "one"),
        ("b.txt", "two\nlines\n"),
    ]
    assert [(i.index, i.source) for i in items if i.error] == [(2, "c.txt"), (3, "d.txt")]


def test_chat_wraps_text_and_leaves_ids_and_errors(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": [1]}\n{"prompt": ""}\n')
    items = read_items(None, str(file), chat=True)
    assert items[0].prompt == [{"role": "user", "content": "a"}]
    assert items[1].prompt == [1]
    assert items[2].error


@pytest.mark.parametrize("content", ["", "\n \r\n"])
def test_no_prompts_at_all_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "in.txt"
    file.write_text(content)
    with pytest.raises(InputError, match="no prompts in"):
        read_items(None, str(file))


def test_a_missing_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl: no such file"):
        read_items(None, "gone.jsonl")


def test_two_sources_are_refused() -> None:
    with pytest.raises(InputError, match="not both"):
        read_items(["a"], "in.txt")
