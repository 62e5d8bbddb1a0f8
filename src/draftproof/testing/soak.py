"""Random traffic in production mode, every row compared with what it is alone.

    python -m draftproof.testing.soak [--requests 2000] [--seed 0] [--minutes 10]

Each episode draws a model, executor, method, drafter and 1 to 8 rows, and requests that share
beginnings, end in one round, stop early or are drawn several times. Greedy rows must
be transformers' own `generate` at batch 1; seeded ones plain decoding alone. A failure prints the
episode's seed: `--seed S --episodes 1` runs it again.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.api import Pair
from draftproof.testing.comparing import random_prompts
from draftproof.testing.drafters import ScriptedDrafter
from draftproof.testing.models import noisy_copy, tiny_model
from draftproof.testing.oracle import stock_generate
from draftproof.testing.tokenizers import tiny_tokenizer

ARCHITECTURES = ("llama", "mistral", "gpt2", "gemma3_text", "qwen3")
FOR_OPENVINO = ("llama",)
METHODS = ("rows", "rows", "rows", "rows", "eqspec", "exspec", "rollback")
MOST_NEW = 14
SPARE = 8
SEEDED = {"temperature": 0.9, "top_k": 40}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One prompt of an episode and what is asked for it.

    options: of this prompt, as `Pair.generate` takes them one per prompt
    """

    prompt: list[int]
    options: dict[str, Any]


@dataclass(kw_only=True)
class Episode:
    """Everything drawn from one seed."""

    seed: int
    architecture: str
    executor: str
    method: str
    drafter: str
    run: dict[str, Any]
    asked: list[Asked]
    ways: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """One line."""
        rows = self.run["max_num_seqs"]
        return (
            f"seed {self.seed}: {self.architecture}, {self.executor}, {self.method}, "
            f"{self.drafter} drafts, {rows} rows, {len(self.asked)} prompts, {', '.join(self.ways)}"
        )


@functools.cache
def model_of(name: str) -> Any:
    """The target of an architecture."""
    return tiny_model(name, seed=1)


@functools.cache
def draft_of(name: str) -> Any:
    """A model that is right often and wrong often."""
    return noisy_copy(model_of(name), amount=0.08, seed=11)


@functools.cache
def tokenizer() -> Any:
    """For stop strings."""
    return tiny_tokenizer()


@functools.lru_cache(maxsize=20_000)
def continuation(name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """What transformers' own generate writes, longer than any budget."""
    return tuple(stock_generate(model_of(name), prompt, MOST_NEW + SPARE, pad_token_id=0))


@functools.cache
def pair_of(name: str, executor: str, method: str, drafter: str) -> Pair:
    """Pairs are kept: what one call leaves behind must not show in the next."""
    draft = {"none": None, "ngram": "ngram", "model": None, "scripted": None}[drafter]
    if drafter == "model":
        draft = draft_of(name)
    return Pair(
        model_of(name),
        draft,
        tokenizer=tokenizer(),
        numerics="fast",
        method=method,
        executor=executor,
    )


def draw(seed: int) -> Episode:
    """An episode from its seed."""
    rng = random.Random(seed)
    openvino = importlib.util.find_spec("openvino") is not None and rng.random() < 0.15
    name = rng.choice(FOR_OPENVINO if openvino else ARCHITECTURES)
    method = "rows" if openvino else rng.choice(METHODS)
    drafters = ["none", "ngram", "model"] if openvino else ["none", "ngram", "model", "scripted"]
    drafter = rng.choice(drafters)
    run: dict[str, Any] = {
        "max_num_seqs": rng.randint(1, 8),
        "max_num_batched_tokens": rng.choice([17, 24, 40, 64, 512]),
        "num_speculative_tokens": rng.choice([1, 2, 3, 4, 5, "auto"]),
    }
    if method != "rows" or (drafter == "scripted" and run["num_speculative_tokens"] == "auto"):
        run["num_speculative_tokens"] = rng.randint(1, 5)
    if run["num_speculative_tokens"] != "auto" and method == "rows" and rng.random() < 0.3:
        run["num_speculative_tokens_schedule"] = "adaptive"
    return Episode(
        seed=seed,
        architecture=name,
        executor="openvino" if openvino else "torch",
        method=method,
        drafter=drafter,
        run=run,
        asked=_requests(rng, name, greedy_only=drafter == "scripted" or method != "rows"),
        ways=rng.choices(["generate", "stream", "left early", "interleaved"], k=2),
    )


def _requests(rng: random.Random, name: str, *, greedy_only: bool) -> list[Asked]:
    stems = random_prompts(
        [rng.choice([17, 20, 33, 64, 65, 90]) for _ in range(rng.randint(1, 3))],
        seed=rng.randrange(1 << 30),
    )
    budget = rng.choice([None, rng.randint(1, MOST_NEW)])  # equal ones end in one round
    asked = []
    for _ in range(rng.randint(2, 14)):
        stem = rng.choice(stems)
        tail = random_prompts([rng.randint(1, 12)], seed=rng.randrange(1 << 30))[0]
        kind = rng.random()
        prompt = stem[: rng.randint(1, len(stem))] + tail if kind < 0.5 else stem + tail
        prompt = list(stem) if kind > 0.85 else prompt
        options: dict[str, Any] = {"max_new_tokens": budget or rng.randint(1, MOST_NEW)}
        if not greedy_only and rng.random() < 0.3:
            options |= {**SEEDED, "do_sample": True, "seed": rng.randrange(100)}
            options["num_return_sequences"] = rng.choice([1, 1, 2, 5, 8])
        else:
            options |= _ends(rng, continuation(name, tuple(prompt)))
        asked.append(Asked(prompt=prompt, options=options))
    return asked


def _ends(rng: random.Random, right: Sequence[int]) -> dict[str, Any]:
    """Perhaps an eos or a stop string that the row will meet."""
    place = rng.randrange(MOST_NEW - 1)
    if (kind := rng.random()) < 0.3:
        return {"eos_token_id": [right[place]]}
    if kind < 0.45:
        text = tokenizer().decode(list(right[place : place + 2]))
        return {"stop_strings": [text]} if text.strip() and "\ufffd" not in text else {}
    return {}


def expected(episode: Episode, asked: Asked) -> list[list[int]]:
    """The token ids of every sequence asked for."""
    if asked.options.get("do_sample"):
        alone = pair_of(episode.architecture, episode.executor, "rows", "none")
        results = alone.generate(
            [asked.prompt], max_num_seqs=1, enable_prefix_caching=False, **asked.options
        )
        return [result.token_ids for result in results]
    right = list(continuation(episode.architecture, tuple(asked.prompt)))
    return [_cut(right[: asked.options["max_new_tokens"]], asked.options)]


def _cut(ids: list[int], options: dict[str, Any]) -> list[int]:
    for count in range(1, len(ids) + 1):
        if ids[count - 1] in options.get("eos_token_id", ()):
            return ids[:count]
        text = tokenizer().decode(ids[:count], skip_special_tokens=False)
        if any(stop in text for stop in options.get("stop_strings", ())):
            return ids[:count]
    return ids


def decode(episode: Episode, way: str) -> list[list[list[int]]]:
    """The same by a pair in production mode, per prompt and sequence."""
    pair = pair_of(episode.architecture, episode.executor, episode.method, episode.drafter)
    prompts = [asked.prompt for asked in episode.asked]
    if episode.drafter == "scripted":
        pair = Pair(
            model_of(episode.architecture),
            _scripted(episode),
            tokenizer=tokenizer(),
            numerics="fast",
            method=episode.method,
        )
    options = episode.run | _columns([asked.options for asked in episode.asked])
    if way == "left early":
        stream = pair.stream(prompts, **options)
        for _ in range(episode.seed % 7 + 1):
            next(stream, None)
        stream.close()  # type: ignore[attr-defined]
        way = "generate"
    if way == "generate":
        results = pair.generate(prompts, **options)
        return _grouped(len(prompts), [(r.index, r.sequence, r.token_ids) for r in results])
    streams = [pair.stream(prompts, **options) for _ in range(2 if way == "interleaved" else 1)]
    found: list[dict[tuple[int, int], list[int]]] = [{} for _ in streams]
    going = True
    while going:
        going = False
        for stream, into in zip(streams, found, strict=True):
            if (event := next(stream, None)) is not None:
                going = True
                into.setdefault((event.index, event.sequence), []).extend(event.token_ids)
    assert all(one == found[0] for one in found), "two streams of the same requests differ"
    return _grouped(len(prompts), [(*key, ids) for key, ids in sorted(found[0].items())])


def _scripted(episode: Episode) -> ScriptedDrafter:
    rng = random.Random(episode.seed)
    rows = [continuation(episode.architecture, tuple(a.prompt)) for a in episode.asked]
    return ScriptedDrafter(continuations=rows, wrong_at=[rng.randint(0, 5) for _ in rows])


def _columns(given: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """One value per prompt; None where a prompt leaves an option out."""
    names = {name for options in given for name in options}
    usual: dict[str, Any] = {"num_return_sequences": 1, "do_sample": False, "eos_token_id": []}
    return {n: [options.get(n, usual.get(n)) for options in given] for n in sorted(names)}


def _grouped(count: int, rows: Sequence[tuple[int, int, list[int]]]) -> list[list[list[int]]]:
    found: list[list[list[int]]] = [[] for _ in range(count)]
    for index, _, ids in sorted(rows):
        found[index].append(ids)
    return found


def check(episode: Episode) -> int:
    """Run an episode; the number of rows compared. Raises AssertionError, naming the row."""
    rows = 0
    for way in episode.ways:
        for index, ids in enumerate(decode(episode, way)):
            right = expected(episode, episode.asked[index])
            rows += len(right)
            assert ids == right, (
                f"{episode.describe()}\n{way}: prompt {index} of {len(episode.asked[index].prompt)}"
                f" tokens, {episode.asked[index].options}\n  found    {ids}\n  expected {right}"
            )
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """The command; 1 when an episode failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="rows to compare")
    parser.add_argument("--episodes", type=int, default=None, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first episode")
    given = parser.parse_args(words)
    begin, rows, seed, kinds = time.perf_counter(), 0, given.seed, Counter[str]()
    while rows < given.requests and time.perf_counter() - begin < 60 * given.minutes:
        if given.episodes is not None and seed - given.seed >= given.episodes:
            break
        episode = draw(seed)
        try:
            rows += check(episode)
        except Exception as error:
            print(f"FAILED {episode.describe()}\n{error!r}\n{error}", file=sys.stderr)
            return 1
        kinds.update([episode.executor, episode.method, episode.drafter, *episode.ways])
        seed += 1
    seconds = round(time.perf_counter() - begin, 1)
    report = {"rows": rows, "episodes": seed - given.seed, "seconds": seconds, "of": dict(kinds)}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
