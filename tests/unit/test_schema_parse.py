"""Names and types of requests: what is accepted, and the field that an error names."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.schema import RequestError, parse_chat, parse_completion, parse_json
from draftproof.schema.unserved import UNSERVED

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}


def refused(parse: Any, body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body)
    return caught.value


def chat(**fields: Any) -> Any:
    return parse_chat(HELLO | fields)


# -- what clients send


def test_a_request_as_the_openai_documentation_writes_it() -> None:
    request = parse_chat(
        {
            "model": "gpt-5.4",
            "messages": [
                {"role": "developer", "content": "You are a helpful assistant."},
                {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
            ],
            "logprobs": True,
            "top_logprobs": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "metadata": {"team": "a"},
            "user": "u1",
        }
    )
    assert [message.content for message in request.messages] == [
        "You are a helpful assistant.",
        "Hello!",
    ]


def test_every_default_written_down_asks_for_nothing() -> None:
    """Clients may send null, or the default, for whatever they know."""
    neutral = {name: values[0] for name, (values, _) in UNSERVED.items() if values}
    nothing = dict.fromkeys(UNSERVED)
    for given in (neutral, nothing):
        assert parse_chat(HELLO | given) == parse_chat(HELLO)
        bare = {"prompt": "a"}
        assert parse_completion(bare | given | {"best_of": None}) == parse_completion(bare)
    fields = dict.fromkeys(name for name in type(parse_chat(HELLO)).model_fields)
    assert parse_chat(fields | HELLO) == parse_chat(HELLO)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_the_shapes_of_a_prompt(prompt: Any, prompts: list[Any]) -> None:
    assert parse_completion({"prompt": prompt}).prompt == prompts


def test_parts_of_text_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = parse_chat({"messages": [{"role": "user", "content": parts}]})
    assert request.messages[0].content == "a\nb"


def test_one_stop_string_is_a_list_of_one() -> None:
    assert parse_completion({"prompt": "a", "stop": "\n"}).stop == ["\n"]
    assert parse_completion({"prompt": "a", "stop": ["x", "y"]}).stop == ["x", "y"]


def test_biases_have_numbers_as_text_for_keys() -> None:
    request = parse_completion({"prompt": "a", "logit_bias": {"50256": -100}})
    assert request.logit_bias == {50256: -100}


def test_arguments_of_a_call_are_an_object_for_the_template() -> None:
    messages = [
        *HELLO["messages"],
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
    ]
    request = parse_chat({"messages": messages, "tools": [TOOL]})
    said = [message.for_template() for message in request.messages]
    assert said[1]["content"] == ""
    assert said[1]["tool_calls"][0]["function"] == {"name": "now", "arguments": {"a": 1}}
    assert said[2] == {"role": "tool", "content": "noon", "tool_call_id": "c1"}


# -- what is refused, by name


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"temperature": "0.5"}, "temperature", 'valid number, got "0.5"'),
        ({"temperature": -1}, "temperature", "greater than or equal to 0, got -1"),
        ({"temperature": True}, "temperature", "number"),
        ({"temperature": float("inf")}, "temperature", "finite"),
        ({"max_tokens": 5.0}, "max_tokens", "integer"),
        ({"max_tokens": -1}, "max_tokens", "0"),
        ({"seed": 1 << 70}, "seed", "less than"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"top_k": -2}, "top_k", "-1"),
        ({"n": 0}, "n", "1"),
        ({"stop": [""]}, "stop[0]", "1 character"),
        ({"stop": 5}, "stop", "list"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"1": 500}}, "logit_bias[1]", "100"),
        ({"use_beam_search": True}, "use_beam_search", "beam search cannot be served"),
        ({"use_beam_search": 1}, "use_beam_search", "beam search"),
        ({"modalities": ["text", "audio"]}, "modalities", "only text"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "streamed"),
        ({"structured_outputs": {"jsno": {}}}, "structured_outputs.jsno", "unknown field"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ],
)
def test_a_wrong_field_of_either_kind_is_named(
    fields: dict[str, Any], param: str, words: str
) -> None:
    for parse, body in ((parse_chat, HELLO), (parse_completion, {"prompt": "a"})):
        error = refused(parse, body | fields)
        assert (error.param, error.status) == (param, 400)
        assert words in str(error)
        assert str(error).startswith(f"{param}: ")


@pytest.mark.parametrize("name", sorted(UNSERVED))
def test_what_cannot_be_served_says_so(name: str) -> None:
    if name != "best_of":
        assert refused(parse_completion, {"prompt": "a", name: "x"}).param == name
    assert refused(parse_chat, HELLO | {name: "x"}).param == name


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "is empty"),
        ({"prompt": []}, "prompt", "is empty"),
        ({"prompt": ["a", ""]}, "prompt", "number 1 is empty"),
        ({"prompt": [1, True]}, "prompt", "token ids only"),
        ({"prompt": 7}, "prompt", "must be text"),
        ({"prompt": None}, "prompt", "must be text"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "infilling"),
        ({"prompt": "a", "best_of": 3}, "best_of", "only the value of n"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "integer"),
        ({"prompt": "a", "messages": []}, "messages", "unknown field"),
        ({}, "prompt", "missing"),
    ],
)
def test_a_wrong_field_of_a_completion(fields: dict[str, Any], param: str, words: str) -> None:
    error = refused(parse_completion, fields)
    assert error.param == param
    assert words in str(error)


USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "messages", "missing"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": "alien", "content": "a"}]}, "messages[0].role", "'user'"),
        ({"messages": [{"role": "user"}]}, "messages[0]", "content is missing"),
        ({"messages": [USER | {"contents": "a"}]}, "messages[0].contents", "unknown field"),
        ({"messages": [USER | {"tool_call_id": "a"}]}, "messages[0]", "belongs to the role tool"),
        (
            {"messages": [USER | {"content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "part 0 is of type 'image_url', which cannot be served",
        ),
        ({"messages": [USER | {"content": [{"type": "text"}]}]}, "messages[0].content", "part 0"),
        ({"messages": [USER | {"content": ["a"]}]}, "messages[0].content", "part 0"),
        ({"messages": [USER, ASSISTANT]}, "messages", "continue_final_message: true continues"),
        (
            {"messages": [USER], "continue_final_message": True},
            "continue_final_message",
            "must be the assistant's",
        ),
        (
            {
                "messages": [USER, ASSISTANT],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "continue_final_message",
            "excludes add_generation_prompt",
        ),
        (HELLO | {"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        (HELLO | {"logprobs": 2}, "logprobs", "boolean"),
        (HELLO | {"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens", "differs"),
        (HELLO | {"tool_choice": "required"}, "tool_choice", "needs tools"),
        (HELLO | {"tools": [TOOL, TOOL]}, "tools", "one name"),
        (
            HELLO
            | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "no function x",
        ),
        (HELLO | {"functions": [{}]}, "functions", "superseded by tools"),
        (HELLO | {"audio": {}}, "audio", "audio cannot be served"),
    ],
)
def test_a_wrong_field_of_a_chat(fields: dict[str, Any], param: str, words: str) -> None:
    error = refused(parse_chat, fields)
    assert error.param == param
    assert words in str(error)


def test_a_last_message_of_the_assistant_is_continued_or_followed_by_another() -> None:
    messages = [USER, ASSISTANT]
    going_on = parse_chat({"messages": messages, "continue_final_message": True})
    assert not going_on.generation_prompt
    another = parse_chat({"messages": messages, "add_generation_prompt": True})
    assert another.generation_prompt


def test_several_errors_are_all_named() -> None:
    error = refused(parse_completion, {"prompt": "a", "top_p": 2, "seed": "x"})
    assert "top_p: " in str(error)
    assert "seed: " in str(error)


# -- JSON


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a": 1', "bad JSON"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": 1, "a": 2}', "a: given twice"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_json_is_read_to_the_letter(data: bytes, words: str) -> None:
    assert words in str(refused(parse_json, data))


def test_half_a_character_is_named_by_its_place() -> None:
    body = parse_json('{"messages": [{"role": "user", "content": "ab\\ud800c"}]}')
    error = refused(parse_chat, body)
    assert error.param == "messages[0].content"
    assert "character 3 is half of a surrogate pair" in str(error)
    assert (
        refused(parse_completion, parse_json('{"prompt": ["a", "\\udc00"]}')).param == "prompt[1]"
    )
    assert "surrogate" in str(refused(parse_completion, parse_json('{"\\ud800": 1}')))


def test_an_error_is_openais_error_object() -> None:
    error = refused(parse_completion, {"prompt": "a", "top_p": 2})
    assert error.as_dict() == {
        "message": str(error),
        "type": "BadRequestError",
        "param": "top_p",
        "code": 400,
    }
