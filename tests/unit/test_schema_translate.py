"""What a request means to the engine, and what its results are called in OpenAI's answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from draftproof import Pair, Result
from draftproof.schema import (
    Constraint,
    Defaults,
    Head,
    RequestError,
    Work,
    parse_chat,
    parse_completion,
    response,
    together,
    translate,
)
from draftproof.schema.texts import GrowingText, TextRules
from draftproof.testing import tiny_model, tiny_tokenizer
from draftproof.types import FinishReason

HEAD = Head(id="1", created=7, model="tiny")
GREEDY = Defaults(max_new_tokens=8)
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer([("t", "h"), ("th", "e")])


@pytest.fixture(scope="module")
def pair(tokenizer: Any) -> Pair:
    model = tiny_model(vocab_size=len(tokenizer), max_position_embeddings=64)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return Pair(model, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def with_bos(tokenizer: Any) -> Any:
    """Adds its bos token to every text, as Llama's does."""
    own = tiny_tokenizer()
    own.bos_token = "<|start|>"
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", own.bos_token_id)]
    )
    return own


def completion(pair: Any, defaults: Defaults = GREEDY, **fields: Any) -> Work:
    return translate(parse_completion({"prompt": "ab"} | fields), pair, defaults=defaults)


def chat(pair: Any, defaults: Defaults = GREEDY, **fields: Any) -> Work:
    return translate(parse_chat({"messages": [USER]} | fields), pair, defaults=defaults)


def refused(make: Callable[..., Work], *args: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        make(*args, **fields)
    return caught.value


def run(pair: Pair, work: Work) -> tuple[list[Result], dict[str, Any]]:
    results = pair.generate(work.ids, **work.options)
    return results, response(work, results, HEAD)


# -- prompts


def test_a_chat_is_what_the_template_and_the_tokenizer_say(pair: Pair, tokenizer: Any) -> None:
    work = chat(pair)
    expected = tokenizer.apply_chat_template([USER], add_generation_prompt=True, tokenize=False)
    assert work.ids == [tokenizer(expected)["input_ids"]]


def test_a_last_message_is_continued(pair: Pair, tokenizer: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "Sure,"}]
    work = chat(pair, messages=messages, continue_final_message=True)
    text = tokenizer.decode(work.ids[0])
    assert text == "<|start|>user\nhi<|stop|><|start|>assistant\nSure,"


def test_a_doubled_bos_is_prevented(with_bos: Any) -> None:
    pair = Pair(tiny_model(vocab_size=len(with_bos)), tokenizer=with_bos)
    bos = with_bos.bos_token_id
    once = [bos, *b"hi"]
    for fields in ({"prompt": "hi"}, {"prompt": "<|start|>hi"}):
        assert completion(pair, **fields).ids == [once]
        assert pair.encode(fields["prompt"]) == once
    assert completion(pair, prompt="hi", add_special_tokens=False).ids == [[*b"hi"]]
    # the text's own two stay two, and ids are taken as they are
    assert completion(pair, prompt="<|start|><|start|>hi").ids == [[bos, *once]]
    assert completion(pair, prompt=[bos, bos, 1]).ids == [[bos, bos, 1]]
    for special in (None, True, False):
        ids = chat(pair, add_special_tokens=special).ids[0]
        assert ids[0] == bos != ids[1]


def test_prompts_are_cut_where_asked(pair: Pair) -> None:
    long = list(range(60))
    assert completion(pair, prompt=long, truncate_prompt_tokens=3, max_tokens=4).ids == [
        [57, 58, 59]
    ]
    right = {"truncate_prompt_tokens": 3, "truncation_side": "right"}
    assert completion(pair, prompt=long, **right).ids == [[0, 1, 2]]
    assert completion(pair, prompt=long, max_tokens=40, truncate_prompt_tokens=-1).ids == [
        long[-24:]
    ]


def test_variables_reach_the_template_and_others_are_refused(tokenizer: Any) -> None:
    own = tiny_tokenizer()
    own.chat_template = "{{ mood }}{% if tools %}[{{ tools[0].function.name }}]{% endif %}"
    pair = Pair(tiny_model(vocab_size=len(own)), tokenizer=own)
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert (
        own.decode(chat(pair, chat_template_kwargs={"mood": "x"}, tools=tools).ids[0]) == "x[now]"
    )
    quiet = chat(pair, chat_template_kwargs={"mood": "x"}, tools=tools, tool_choice="none")
    assert own.decode(quiet.ids[0]) == "x"
    error = refused(chat, pair, chat_template_kwargs={"mod": "x"})
    assert error.param == "chat_template_kwargs.mod"
    assert refused(chat, pair, documents=[{"text": "a"}]).param == "documents"
    assert refused(chat, pair, chat_template="{{ 1 }}").param == "chat_template"
    assert refused(chat, pair, chat_template_kwargs={"tokenize": True}).param == (
        "chat_template_kwargs.tokenize"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": [1, 9999]}, "prompt: token id 9999 at position 1"),
        ({"prompt": [1] * 65}, "prompt: 65 tokens are more than the context of 64"),
        ({"prompt": [1] * 60, "max_tokens": 5}, "max_tokens: 5 and a prompt of 60"),
        ({"min_tokens": 9}, "min_tokens: 9 is more than max_tokens, 8"),
        ({"n": 2}, "n: 2 answers decoded greedily"),
        ({"stop_token_ids": [9999]}, "stop_token_ids: 9999 is outside"),
        ({"logit_bias": {"9999": 1}}, "logit_bias or sequence_bias: [9999]"),
        ({"response_format": {"type": "json_object"}}, "json_object cannot be served here"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    pair: Pair, fields: dict[str, Any], words: str
) -> None:
    assert words in str(refused(completion, pair, **fields))


def test_a_model_that_is_not_served_is_not_found(pair: Pair) -> None:
    request = parse_completion({"prompt": "a", "model": "other"})
    error = refused(translate, request, pair, names=["tiny"])
    assert (error.status, error.param) == (404, "model")
    translate(request, pair, names=["tiny", "other"])


# -- settings


def test_defaults_are_the_doors(pair: Pair) -> None:
    openai = translate(parse_completion({"prompt": "ab"}), pair)
    assert openai.options["max_new_tokens"] == 16
    assert openai.sampling() == {"do_sample": True, "temperature": 1.0}
    rest = translate(parse_chat({"messages": [USER]}), pair)
    assert rest.options["max_new_tokens"] == 64 - len(rest.ids[0])
    assert completion(pair).sampling() == {"do_sample": False}
    flags = Defaults(options={"temperature": 0.5, "top_k": 3}, max_new_tokens=4)
    assert completion(pair, flags).sampling() == {
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 3,
    }
    assert completion(pair, flags, temperature=0).sampling() == {"do_sample": False}


def test_filters_that_filter_nothing_do_not_sample(pair: Pair) -> None:
    assert not completion(pair, top_p=1, top_k=-1, min_p=0).options["do_sample"]
    assert completion(pair, top_p=0.9).sampling() == {
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.9,
    }


def test_ends_of_a_row(pair: Pair, tokenizer: Any) -> None:
    eos = tokenizer.eos_token_id
    assert completion(pair).options["eos_token_id"] == [eos]
    assert completion(pair, stop_token_ids=[7]).options["eos_token_id"] == [eos, 7]
    both = completion(pair, stop_token_ids=[7], ignore_eos=True, min_tokens=2)
    assert both.options["eos_token_id"] == [7]
    assert both.options["min_new_tokens"] == 2


def test_bad_words_with_and_without_a_space(pair: Pair) -> None:
    assert completion(pair, bad_words=["the", " a"]).options["bad_words_ids"] == [
        [pair.tokenizer.convert_tokens_to_ids("the")],
        [97],
    ]


def test_requests_together_are_the_requests_alone(pair: Pair) -> None:
    works = [
        completion(pair, prompt=["the", "a b"], bad_words=["x"], logit_bias={"5": 1}),
        completion(pair, prompt=[5, 6], temperature=0.9, seed=3, n=2, max_tokens=3, stop=["q"]),
        chat(pair, logprobs=True, ignore_eos=True, presence_penalty=0.5),
    ]
    alone = [row for work in works for row in pair.generate(work.ids, **work.options)]
    prompts, options = together(works)
    assert len(prompts) == 4
    assert all(len(values) == 4 for values in options.values())
    joined = pair.generate(prompts, **options)
    assert [row.token_ids for row in joined] == [row.token_ids for row in alone]
    assert [row.logprobs is None for row in joined] == [True, True, True, True, False]


# -- answers


def test_a_completion_in_openais_shape(pair: Pair) -> None:
    work = completion(pair, n=2, temperature=1, seed=5, return_token_ids=True, logprobs=1)
    results, body = run(pair, work)
    assert (body["id"], body["object"], body["created"]) == ("cmpl-1", "text_completion", 7)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    for choice, result in zip(body["choices"], results, strict=True):
        assert choice["token_ids"] == result.token_ids
        assert choice["prompt_token_ids"] == work.ids[0]
        assert choice["text"] == result.text
        assert choice["seed"] == 5
        assert choice["finish_reason"] in ("stop", "length")
        tokens, tops = choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"]
        assert all(token in top for token, top in zip(tokens, tops, strict=True))
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == sum(len(r.token_ids) for r in results)
    assert body["draftproof"]["sampling"] == {"do_sample": True, "temperature": 1.0}
    json.dumps(body, allow_nan=False)


def test_a_chat_in_openais_shape(pair: Pair) -> None:
    work = chat(pair, logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True)
    results, body = run(pair, work)
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == results[0].text
    entry = choice["logprobs"]["content"][0]
    assert entry["token"] == f"token_id:{results[0].token_ids[0]}"
    assert len(entry["top_logprobs"]) == 2


@pytest.mark.parametrize("most", [0, 3])
def test_echo_repeats_the_prompt_with_its_log_probabilities(pair: Pair, most: int) -> None:
    work = completion(pair, prompt="the ab", echo=True, logprobs=1, max_tokens=most)
    results, body = run(pair, work)
    choice = body["choices"][0]
    assert choice["text"] == "the ab" + (results[0].text or "")
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:4] == ["the", " ", "a", "b"]
    assert logprobs["text_offset"][:4] == [0, 3, 4, 5]
    assert logprobs["token_logprobs"][0] is None
    assert {len(values) for values in logprobs.values()} == {4 + most}


def test_echo_of_ids_is_their_text(pair: Pair) -> None:
    assert run(pair, completion(pair, prompt=[97, 98], echo=True))[1]["choices"][0][
        "text"
    ].startswith("ab")


def test_logprobs_of_the_prompt_by_token_id(pair: Pair) -> None:
    _, body = run(pair, completion(pair, prompt_logprobs=1))
    first, second = body["choices"][0]["prompt_logprobs"]
    assert first is None
    assert str(ord("b")) in second


SAID = "one. two STOP three"


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"stop": ["STOP"]}, "one. two ", "STOP"),
        ({"stop": ["TOP", "STOP"]}, "one. two ", "STOP"),
        ({"stop": ["two", "one"]}, "", "one"),
        ({"stop": ["STOP"], "include_stop_str_in_output": True}, "one. two STOP", "STOP"),
        ({"stop_token_ids": [ord("S")]}, "one. two ", ord("S")),
        (
            {"stop_token_ids": [ord("S")], "include_stop_str_in_output": True},
            "one. two S",
            ord("S"),
        ),
        ({"stop": ["one"], "min_tokens": 4}, SAID + "|", None),
        ({"max_tokens": 3}, "one", None),
    ],
)
def test_where_the_text_ends(pair: Pair, fields: dict[str, Any], text: str, reason: Any) -> None:
    """Cut as one text and as a stream, in pieces of every length."""
    script = list(SAID.encode()) + [ord("|")]
    work = completion(pair, **({"max_tokens": len(script)} | fields))

    def write(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[0, script[ids.shape[1] - 2]] = 0
        return forced

    (result,) = pair.generate(work.ids, **work.options | {"logits_processor": [write]})
    choice = response(work, [result], HEAD)["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (text, reason)
    for size in range(1, 6):
        growing, ids, shown = GrowingText(work.rules), result.token_ids, []
        while len(ids) > size:
            shown.append(growing.push(ids[:size]))
            ids = ids[size:]
        rest, ended = growing.finish(ids, result.finish_reason)
        assert ("".join([*shown, rest]), ended) == (text, reason)


def test_a_stream_shows_what_cannot_become_a_stop_string(tokenizer: Any) -> None:
    growing = GrowingText(TextRules(tokenizer=tokenizer, stop_strings=("STOP",)))
    shown = [growing.push(list(piece.encode())) for piece in ("a S", "T", "ILL S", "TO")]
    assert shown == ["a ", "", "STILL ", ""]
    assert growing.finish(list(b"!"), FinishReason.LENGTH) == ("STO!", None)


def test_an_end_token_is_not_text_also_where_specials_are_shown(pair: Pair, tokenizer: Any) -> None:
    eos, stop = tokenizer.convert_tokens_to_ids(["<|end|>", "<|stop|>"])
    shown = TextRules(tokenizer=tokenizer, skip_special_tokens=False)
    assert shown.ending([97, stop, eos], FinishReason.EOS).text == "a<|stop|>"
    hidden = TextRules(tokenizer=tokenizer, stop_strings=("<|stop|>",))
    ended = hidden.ending([97, stop], FinishReason.STOP)
    assert (ended.text, ended.stop_reason) == ("a", "<|stop|>")


# -- constraints and tools

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": SCHEMA}}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            Constraint("json_schema", SCHEMA),
        ),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
        ({"structured_outputs": {"regex": "a+"}}, Constraint("regex", "a+")),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, Constraint("json_schema", SCHEMA)),
        ({"guided_choice": ["a", "b"]}, Constraint("choice", ["a", "b"])),
        ({"guided_grammar": "root ::= 'a'"}, Constraint("grammar", "root ::= 'a'")),
    ],
)
def test_a_constraint_becomes_a_processor(
    pair: Pair, fields: dict[str, Any], expected: Constraint
) -> None:
    seen: list[Constraint] = []

    def processor(ids: Any, scores: Any) -> Any:
        return scores

    def constrain(constraint: Constraint) -> Any:
        seen.append(constraint)
        return processor

    request = parse_completion({"prompt": "a"} | fields)
    work = translate(request, pair, defaults=GREEDY, constrain=constrain)
    assert seen == [expected]
    assert work.options["logits_processor"] == [processor]


def test_two_constraints_are_refused(pair: Pair) -> None:
    fields = {"guided_regex": "a", "structured_outputs": {"choice": ["b"]}}
    assert "only one can hold" in str(refused(completion, pair, **fields))


def test_a_tool_that_must_be_called_is_called() -> None:
    own = tiny_tokenizer()
    own.chat_template = "{{ tools }}"
    pair = Pair(tiny_model(vocab_size=len(own)), tokenizer=own)
    named = {"type": "function", "function": {"name": "now"}}
    seen: list[Constraint] = []

    def constrain(constraint: Constraint) -> Any:
        seen.append(constraint)
        return lambda ids, scores: scores

    def answer(choice: Any, said: str) -> dict[str, Any]:
        body = {"messages": [USER], "tools": TOOLS, "tool_choice": choice, "max_tokens": 4}
        work = translate(parse_chat(body), pair, defaults=GREEDY, constrain=constrain)
        (result,) = pair.generate(work.ids, **work.options)
        ids = [*said.encode(), own.eos_token_id]
        ended = type(result)(
            **{name: getattr(result, name) for name in Result.__dataclass_fields__}
            | {"token_ids": ids, "finish_reason": FinishReason.EOS}
        )
        return response(work, [ended], HEAD)["choices"][0]

    choice = answer(named, '{"a": 1}')
    assert seen[0] == Constraint("json_schema", SCHEMA)
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "now",
        "arguments": '{"a": 1}',
    }
    assert choice["finish_reason"] == "stop"
    choice = answer("required", '[{"name": "now", "parameters": {"a": 1}}]')
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_a_prediction_is_the_users_draft(pair: Pair, tokenizer: Any) -> None:
    work = chat(pair, prediction={"type": "content", "content": "the end"})
    assert work.prediction == tokenizer("the end")["input_ids"]
