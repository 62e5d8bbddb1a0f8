"""Every kind of file, every shape of a line, and what is wrong with one, by its line number."""

from __future__ import annotations

import gzip
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from draftproof.cli.formats import rows_of
from draftproof.cli.inputs import Item, item_of, open_source
from draftproof.cli.prompts import read_items
from draftproof.cli.streams import CHUNK
from draftproof.cli.survey import survey
from draftproof.errors import InputError


def read(data: bytes, suffix: str = "", name: str = "in") -> list[Any]:
    return [
        row.content if row.error is None else row.error
        for row in rows_of(io.BytesIO(data), name, suffix)
    ]


def items_in(path: Path | str, **how: Any) -> list[Item]:
    with open_source(None, str(path), **how) as source:
        return list(survey(source).items())


def only(line: str, **how: Any) -> Item:
    (row,) = rows_of(io.BytesIO(line.encode()), "in", ".jsonl")
    with open_source(["unused"], None, **how) as source:
        return item_of(row, 0, "key", source)


def request_of(line: dict[str, Any], **how: Any) -> Any:
    item = only(json.dumps(line), **how)
    assert item.line is not None, item.error
    return item.line.request


# -- shapes of a line


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ({"prompt": "a b"}, ["a b"]),
        ({"prompt": [1, 2]}, [[1, 2]]),
        ({"text": "a"}, ["a"]),
        ({"question_id": 81, "category": "qa", "turns": ["first", "second"]}, ["first"]),
        ({"prompt": "a", "messages": None}, ["a"]),
    ],
)
def test_shapes_of_a_simple_line(line: dict[str, Any], prompt: list[Any]) -> None:
    assert request_of(line).prompt == prompt


def test_settings_of_a_line() -> None:
    request = request_of({"prompt": "a", "temperature": 0.5, "seed": 3, "max_new_tokens": 4})
    assert (request.temperature, request.seed, request.max_tokens) == (0.5, 3, 4)
    params = {"temperature": 0.5, "top_k": -1, "stop": "x", "ignore_eos": True, "detokenize": True}
    request = request_of({"prompt": "a", "sampling_params": params})
    assert (request.top_k, request.stop, request.ignore_eos) == (-1, ["x"], True)
    messages = [{"role": "user", "content": "x"}]
    request = request_of({"messages": messages, "sampling_params": {"logprobs": 3}})
    assert (request.logprobs, request.top_logprobs) == (True, 3)


def test_a_line_of_openais_batch_files() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    line = {"custom_id": "7", "method": "POST", "url": "/v1/chat/completions", "body": body}
    item = only(json.dumps(line))
    assert item.labels == {"custom_id": "7"}
    assert item.line is not None
    assert item.line.request.max_tokens == 5
    assert item.line.prompt == body["messages"]


def test_chat_wraps_text_and_leaves_ids_and_errors() -> None:
    assert request_of({"prompt": "a"}, chat=True).messages[0].content == "a"
    assert request_of({"prompt": [1]}, chat=True).prompt == [[1]]
    assert only('{"prompt": ""}', chat=True).error


def test_labels_come_back() -> None:
    line = '{"prompt": "a", "id": 7, "category": "qa", "answer": 5, "reference": null}'
    assert "--label answer would copy it" in str(only(line).error)
    item = only(line, labels=["answer"])
    assert item.error is None
    assert item.labels == {"id": 7, "category": "qa", "answer": 5}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"prompt": "a"', "bad JSON"),
        ("[1, 2]", "expected a JSON object"),
        ('{"prompts": "a"}', "none of prompt, messages, turns, text"),
        ('{"prompt": "a", "text": "b"}', "ambiguous: the line holds prompt and text"),
        ('{"prompt": "a", "prompt": "b"}', "prompt: given twice"),
        ('{"prompt": ""}', "prompt: is empty"),
        ('{"prompt": []}', "prompt: is empty"),
        ('{"turns": []}', "turns: must be a list of texts"),
        ('{"turns": "abc"}', "turns: must be a list of texts"),
        ('{"prompt": 7}', "prompt: must be text"),
        ('{"prompt": [1, "a"]}', "token ids only"),
        ('{"prompt": [1, true]}', "token ids only"),
        ('{"prompt": "\\ud800"}', "prompt: character 1 is half of a surrogate pair"),
        ('{"messages": [{"content": "x"}]}', "messages[0].role: missing"),
        ('{"messages": "x"}', "messages: "),
        ('{"prompt": "a", "max_new_tokens": -1}', "max_tokens: "),
        ('{"prompt": "a", "max_tokens": "9"}', "max_tokens: "),
        ('{"prompt": "a", "max_tokens": 1, "max_new_tokens": 1}', "given twice"),
        ('{"prompt": "a", "temprature": 1}', "temprature: unknown field; did you mean temperature"),
        ('{"prompt": "a", "sampling_params": 1}', "sampling_params: must be an object"),
        ('{"prompt": "a", "sampling_params": {"temprature": 1}}', "did you mean temperature"),
        ('{"prompt": "a", "n": 1, "sampling_params": {"n": 1}}', "n: given twice"),
        ('{"prompt": "a", "stream": true}', "stream: "),
        ('{"prompt": "a", "use_beam_search": true}', "beam search cannot be served"),
        ('{"custom_id": "1", "url": "/v1/completions", "body": {}}', "method: must be POST"),
        ('{"custom_id": "1", "method": "POST", "url": "/v2", "body": {}}', "url: '/v2' cannot"),
        ('{"method": "POST", "url": "/v1/completions", "body": {}}', "custom_id: must be text"),
        (
            '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": null}',
            "expected a JSON object",
        ),
        (
            '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}, "n": 1}',
            "n: unknown field of a batch line",
        ),
        ("[" * 100_000, "bad JSON"),
    ],
)
def test_a_bad_line_is_an_item_with_an_error(line: str, error: str) -> None:
    item = only(line)
    assert (item.source, item.line) == ("line 1", None)
    assert error in str(item.error)


def test_only_batch_lines_where_only_they_are_meant() -> None:
    assert "no line of a batch file" in str(only('{"prompt": "a"}', batch=True).error)


# -- lines


def test_lines_keep_their_numbers_past_blank_lines_and_windows_endings(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \r\noops\r\n{"prompt": "b", "id": 7}')
    items = items_in(file)
    assert [(i.index, i.source, i.line is None) for i in items] == [
        (0, "line 1", False),
        (1, "line 4", True),
        (2, "line 5", False),
    ]
    assert items[2].labels == {"id": 7}


def test_text_lines_lose_nothing_but_the_line_ending() -> None:
    data = b"\xef\xbb\xbf  two  words \r\n\n{not json}\n"
    assert read(data, ".txt") == ["  two  words ", "{not json}"]


def test_unicode_line_separators_do_not_end_a_line() -> None:
    text = "one\u2028line\x0bstill\x85one"
    assert read(text.encode(), ".txt") == [text]
    line = json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False)
    assert read(line.encode(), ".jsonl") == [{"prompt": "a\u2028b"}]


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_ten_megabytes(packed: bool) -> None:
    long = {"prompt": "é" * 5_000_000}
    data = json.dumps(long, ensure_ascii=False).encode() + b'\n{"prompt": "b"}\n'
    assert len(data) > 10_000_000 > 2 * CHUNK
    data = gzip.compress(data, 1) if packed else data
    assert read(data, ".jsonl") == [long, {"prompt": "b"}]


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b'\n {"text": "a"}\n', [{"text": "a"}]),
        (b"plain\n", ["plain"]),
        (b"[1]", ["[1]"]),
        (b'[ {"text": "a"}]', [{"text": "a"}]),
        (b'["a", "b"]', ["a", "b"]),
    ],
)
def test_without_a_known_suffix_the_beginning_decides(data: bytes, rows: list[Any]) -> None:
    assert read(data) == rows


def test_bytes_that_are_not_utf8_spoil_only_their_line() -> None:
    assert read(b"good\nbad \xff\nfine\n", ".txt") == ["good", "not UTF-8 (byte 5)", "fine"]


def test_utf16_is_named() -> None:
    with pytest.raises(InputError, match="UTF-16"):
        read("text".encode("utf-16"))


# -- JSON arrays


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_array_is_read_an_element_at_a_time(size: int) -> None:
    from draftproof.cli.formats import json_values

    elements = [{"prompt": "a\n]é😀"}, "text", {"prompt": [1, 2]}, {"a": {"b": [{}]}}]
    data = json.dumps(elements, indent=1, ensure_ascii=False).encode()
    rows = list(json_values(in_pieces(data, size), "in.json"))
    assert [row.content for row in rows] == elements
    assert [row.source for row in rows] == [f"element {n}" for n in (1, 2, 3, 4)]
    assert read(b" [ ] ", ".json") == []
    assert read(b'{"prompt":\n "a"}\n{"prompt": "b"}', ".json") == [
        {"prompt": "a"},
        {"prompt": "b"},
    ]


def test_bad_elements_do_not_stop_the_others() -> None:
    assert read(b'[{"a": 1, "a": 2}, 7, {"b": NaN}, "x"]', ".json") == [
        "a: given twice",
        "expected a JSON object",
        "bad JSON: NaN is no number of JSON",
        "x",
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'[{"a": 1}', "does not end"),
        (b'[{"a": 1},]', "nothing follows a comma"),
        (b'[{"a": 1} {"b": 1}]', "no comma after element 1"),
        (b'[{"a": 1}, {"b"', "element 2"),
        (b'[{"a": 1}] x', "something follows"),
        (b'{"a": 1}]', "does not end as it began"),
        (b'["\xff"]', "not UTF-8"),
    ],
)
def test_an_array_that_breaks_is_refused_as_a_whole(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(data, ".json", "in.json")


# -- compressed


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_files(pack: Any) -> None:
    data = b"".join(b'{"prompt": "%d"}\n' % n for n in range(20_000))
    whole = [{"prompt": str(n)} for n in range(20_000)]
    assert read(pack(data), ".jsonl") == whole
    half = len(data) // 2
    assert read(pack(data[:half]) + pack(data[half:]), ".jsonl") == whole  # two frames
    packed = pack(data)
    for cut in (len(packed) // 2, len(packed) - 1):
        with pytest.raises(InputError, match="cut off"):
            read(packed[:cut], ".jsonl")


def test_damaged_files_are_refused_by_name() -> None:
    packed = bytearray(gzip.compress(b"text" * 1000))
    packed[15] ^= 0xFF
    with pytest.raises(InputError, match="in.gz is damaged"):
        read(bytes(packed), name="in.gz")
    with pytest.raises(InputError, match="not compressed as its name says"):
        read(b"text", name="in.txt.gz")


# -- tables


def test_csv() -> None:
    data = (
        "\ufeffprompt,temperature,stop,id,messages\r\n"
        '"two\nlines, quoted ""so""",0.5,END,7,\r\n'
        ',,,8,"[{""role"": ""user"", ""content"": ""x""}]"\r\n'
        "short,1\r\n"
    ).encode()
    assert read(data, ".csv") == [
        {"prompt": 'two\nlines, quoted "so"', "temperature": 0.5, "stop": "END", "id": "7"},
        {"id": "8", "messages": [{"role": "user", "content": "x"}]},
        "2 fields for 5 columns",
    ]
    assert read(b"prompt\tid\na\t1\n", ".tsv") == [{"prompt": "a", "id": "1"}]


def test_csv_that_cannot_be_read() -> None:
    assert read(b"prompt\n\xff\nb\n", ".csv") == ["not UTF-8", {"prompt": "b"}]
    assert read(b"", ".csv") == []
    with pytest.raises(InputError, match="every column a name"):
        read(b"prompt,prompt\na,b\n", ".csv")
    with pytest.raises(InputError, match="line 2"):
        read(b'prompt\n"a\n', ".csv", "in.csv")
    long = b"prompt\n" + b"x" * 3_000_000
    assert len(read(long, ".csv")[0]["prompt"]) == 3_000_000


def test_parquet(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "max_tokens": 3, "messages": None},
        {"prompt": None, "max_tokens": None, "messages": [{"role": "user", "content": "x"}]},
    ]
    file = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    items = items_in(file)
    assert [item.error for item in items] == [None, None]
    assert [item.source for item in items] == ["row 1", "row 2"]
    assert items[0].line is not None
    assert items[0].line.request.max_tokens == 3
    file.write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"in\.parquet is not Parquet"):
        items_in(file)


# -- folders, pipes, several passes


def test_a_folder_of_any_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbftwo\r\nlines\r\n")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "c.txt").write_text("")
    (tmp_path / "d.txt").write_bytes(b"\xff")
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "f"}\n{\n'))
    (tmp_path / "notes.md").write_text("not a prompt")
    items = items_in(tmp_path)
    good = [(i.labels.get("id"), i.line.request.prompt) for i in items if i.line]  # type: ignore[union-attr]
    assert good == [("a.txt", ["one"]), ("b.txt", ["two\nlines\n"]), (None, ["f"])]
    assert [(i.index, i.source) for i in items if i.error] == [
        (2, "c.txt"),
        (3, "d.txt"),
        (5, "e.jsonl.gz line 2"),
    ]
    assert "notes.md" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="named pipes of POSIX")
def test_a_pipe_is_read_once_and_passed_over_twice(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text('{"prompt": "a"}\n{"prompt": "b"}\n'))
    writer.start()
    assert [item.error for item in items_in(pipe)] == [None, None]
    writer.join()


def test_a_line_is_known_by_its_content_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    lines = ['{"prompt": "a"}', '{"prompt": "b"}', '{"prompt": "a"}', '{"prompt": "b", "n": 1}']
    file.write_text("\n".join(lines))
    keys = [item.key for item in items_in(file)]
    assert len(set(keys)) == 4
    assert keys[2] == f"{keys[0]}-2"
    lines = ["{torn", lines[3], lines[1], '{ "prompt" : "a" }']
    file.write_text("\n".join(lines))
    assert [item.key for item in items_in(file)][1:] == [keys[3], keys[1], keys[0]]


@pytest.mark.parametrize(
    ("later", "words"),
    [("a\nX\n", "changed at line 2"), ("a\n", "shorter"), ("a\nb\nc\n", "changed at line 3")],
)
def test_an_input_that_changes_meanwhile_is_noticed(tmp_path: Path, later: str, words: str) -> None:
    file = tmp_path / "in.txt"
    file.write_text("a\nb\n")
    with open_source(None, str(file)) as source:
        known = survey(source)
        file.write_text(later)
        with pytest.raises(InputError, match=words):
            list(known.items())


# -- prompts of `check`


def test_sides_are_compared_without_settings_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    rows = [
        {"prompt": "a", "max_new_tokens": 3, "category": "qa"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"prompt": "a", "temperature": 1},
        {"prompt": ["a", "b"]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = read_items(None, str(file))
    assert (items[0].prompt, items[0].max_new_tokens) == ("a", 3)
    assert items[0].labels == {"category": "qa"}
    assert items[1].prompt == [{"role": "user", "content": "x"}]
    assert "temperature: " in (items[2].error or "")
    assert "one per line" in (items[3].error or "")


@pytest.mark.parametrize("content", ["", "\n \r\n"])
def test_no_prompts_at_all_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "in.txt"
    file.write_text(content)
    with pytest.raises(InputError, match="no prompts in"):
        read_items(None, str(file))
    with pytest.raises(InputError, match=r"no prompts in in\.txt"):
        items_in(file)


def test_a_missing_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl: no such file"):
        read_items(None, "gone.jsonl")


def test_two_sources_are_refused() -> None:
    with pytest.raises(InputError, match="not both"):
        read_items(["a"], "in.txt")
