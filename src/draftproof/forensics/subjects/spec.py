"""SPEC: how a user names a subject on the command line.

    engine:target=FOLDER[,draft=FOLDER|ngram][,batch=8][,k=4][,dtype=bfloat16][,method=rows]
                         [,numerics=fast][,device=cpu][,executor=openvino]
                         [,draft_executor=torch][,kv_cache_dtype=uint8][,num_threads=2]
    transformers:target=FOLDER[,assistant=FOLDER][,batch=1][,k=4][,dtype=...][,attention=eager]
    http://host:port[?kind=vllm|sglang|llama.cpp|openai&batch=8&k=4&model=NAME&timeout=120
                      &tokenizer=FOLDER&float32=http://host:port&dtype=float32&target=FOLDER]
    file:answers.jsonl

`demo` as a folder is the embedded pair's target, and as a draft its draft. A comma within a value
is written with a backslash before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from draftproof.errors import InputError
from draftproof.forensics.subjects.base import Subject

Options = dict[str, str]


def parse(spec: str) -> Subject:
    """The subject a SPEC names; models are loaded here, servers are not asked yet.

    Raises InputError for whatever a SPEC cannot say.
    """
    if spec.startswith(("http://", "https://")):
        return _http(spec)
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in MAKERS:
        raise InputError(
            f"{spec!r} names no subject; use {', '.join(f'{k}:...' for k in MAKERS)}, or http://..."
        )
    return MAKERS[kind](spec, rest)


def options_of(text: str, allowed: Sequence[str]) -> Options:
    r""" "a=1,b=2" as a dict; `\,` is a comma within a value, and so is one that no key follows.

    Raises InputError, listing what is allowed.
    """
    options: Options = {}
    last = ""
    for word in filter(None, re.split(r"(?<!\\),", text)):
        key, equals, value = word.replace("\\,", ",").partition("=")
        if not equals and last:  # "target=run=3,v2"
            options[last] += f",{key}"
        elif not equals or key not in allowed:
            raise InputError(
                f"{word!r} is not one of {', '.join(f'{k}=...' for k in allowed)} "
                r"(a comma within a value is written \,)"
            )
        else:
            options[key], last = value, key
    return options


def escaped(value: object) -> str:
    """A value as `options_of` reads it back, whatever commas it holds."""
    return str(value).replace(",", "\\,")


def _number(options: Options, key: str, default: int, least: int = 0) -> int:
    text = options.get(key, str(default))
    if not text.isdigit() or int(text) < least:
        raise InputError(f"{key}={text!r}: expected a whole number from {least}")
    return int(text)


def _folder(name: str, role: int) -> str:
    from draftproof.models import demo_paths

    return str(demo_paths()[role]) if name == "demo" else name


def _loaded(name: str, role: int, options: Options) -> Any:
    from draftproof.hf import load_model

    extra = {"attn_implementation": options["attention"]} if "attention" in options else {}
    return load_model(
        _folder(name, role),
        dtype=options.get("dtype", "auto"),
        device=options.get("device", "cpu"),
        model_kwargs=extra,
    )


def open_tokenizer(name: str) -> Any:
    """The tokenizer of a folder, a hub id, or `demo`."""
    from draftproof.hf import load_tokenizer

    return load_tokenizer(_folder(name, 0))


def _target(spec: str, options: Options) -> str:
    if "target" not in options:
        raise InputError(f"{spec!r} needs target=FOLDER")
    return options["target"]


PASSED = ("method", "numerics", "executor", "draft_executor")  # on to the Pair, as they are
EXECUTOR = ("kv_cache_dtype", "num_threads", "draft_weights")  # settings of an executor
ENGINE = ("target", "draft", "batch", "k", "dtype", "device", *PASSED, *EXECUTOR)


def _engine(spec: str, rest: str) -> Subject:
    from draftproof.forensics.subjects.engine import EngineSubject

    options = options_of(rest, ENGINE)
    target, draft = _target(spec, options), options.get("draft")
    passed: dict[str, Any] = {key: value for key, value in options.items() if key in PASSED}
    settings: dict[str, Any] = {key: options[key] for key in EXECUTOR if key in options}
    if "num_threads" in settings:
        settings["num_threads"] = _number(options, "num_threads", 1, least=1)
    if settings:
        passed["executor_options"] = settings
    return EngineSubject(
        name=spec,
        target=_loaded(target, 0, options),
        draft=draft if draft in (None, "ngram") else _loaded(str(draft), 1, options),
        tokenizer=open_tokenizer(target),
        batch=_number(options, "batch", 8 if draft else 1, least=1),
        k=_number(options, "k", 4) if draft else 0,
        options=passed,
    )


TRANSFORMERS = ("target", "assistant", "batch", "k", "dtype", "device", "attention")


def _transformers(spec: str, rest: str) -> Subject:
    from draftproof.forensics.subjects.assisted import TransformersSubject

    options = options_of(rest, TRANSFORMERS)
    target, assistant = _target(spec, options), options.get("assistant")
    batch = _number(options, "batch", 1, least=1)
    if assistant and batch > 1:
        raise InputError("transformers' assisted generation takes one row at a time: batch=1")
    return TransformersSubject(
        name=spec,
        target=_loaded(target, 0, options),
        assistant=_loaded(assistant, 1, options) if assistant else None,
        tokenizer=open_tokenizer(target),
        batch=batch,
        k=_number(options, "k", 4) if assistant else 0,
    )


def _file(spec: str, rest: str) -> Subject:
    from draftproof.forensics.subjects.file import FileSubject

    path = Path(rest)
    if not path.is_file():
        raise InputError(f"{spec!r}: no such file")
    return FileSubject(name=spec, path=path)


MAKERS: dict[str, Callable[[str, str], Subject]] = {
    "engine": _engine,
    "transformers": _transformers,
    "file": _file,
}

HTTP = (
    *("kind", "batch", "k", "model", "timeout", "tokenizer", "requests", "seconds"),
    *("float32", "dtype", "target"),
)


def _http(spec: str) -> Subject:
    if find_spec("httpx") is None:
        raise InputError(f"{spec}: asking a server needs httpx: pip install draftproof[forensics]")
    from draftproof.forensics.subjects.http import Budget, HttpSubject

    parts = urlsplit(spec)
    options = dict(parse_qsl(parts.query))
    unknown = sorted(options.keys() - set(HTTP))
    if unknown:
        raise InputError(f"{', '.join(unknown)}: a server takes {', '.join(HTTP)}")
    dialect, note = _dialect(options)
    return HttpSubject(
        name=spec,
        url=urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
        dialect=dialect,
        served=options.get("model"),
        batch=_number(options, "batch", 8, least=1),
        k=_number(options, "k", 0) if "k" in options else None,
        timeout=float(_number(options, "timeout", 120, least=1)),
        note=note,
        float32=options.get("float32"),
        dtype=options.get("dtype"),
        model=_loaded(options["target"], 0, options) if "target" in options else None,
        budget=Budget(
            requests=_number(options, "requests", 2000, least=1),
            seconds=float(_number(options, "seconds", 1800, least=1)),
        ),
    )


def _dialect(options: Options) -> tuple[Any, str]:
    from draftproof.forensics.subjects import dialects

    known = {"vllm": dialects.Vllm, "sglang": dialects.Sglang, "llama.cpp": dialects.LlamaCpp}
    kind = options.get("kind", "openai")
    if kind in known:
        return known[kind](), ""
    if kind != "openai":
        raise InputError(f"kind={kind!r}: choose one of {', '.join(known)}, openai")
    return _openai(options.get("tokenizer"))


def _openai(folder: str | None) -> tuple[Any, str]:
    """Text only: its tokens are a guess, and the report says so."""
    from draftproof.forensics.subjects.dialects import OpenAI

    if folder is None:
        note = "the server shows text only: characters were compared, not tokens"
        return OpenAI(retokenise=lambda text: [ord(char) for char in text]), note
    tokenizer = open_tokenizer(folder)

    def retokenise(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    note = "the server shows text only: it was made into tokens again, which may join them anew"
    return OpenAI(retokenise=retokenise), note
