"""What is decoded: Spec-Bench questions or built-in prompts, cut to length, and arrival times."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from draftproof.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One prompt and the category that results are broken down by."""

    number: int
    category: str
    text: str


BUILT_IN = {
    "story": (
        "Once upon a time, in a small town by the sea, there lived a",
        "The old lighthouse keeper opened the door and saw",
        "It was the last train of the night, and nobody but",
    ),
    "explanation": (
        "The difference between weather and climate is that",
        "A compiler turns source code into machine code. First it",
        "To bake bread you need flour, water, salt and yeast. Begin by",
    ),
    "list": (
        "Here are ten things to pack for a week in the mountains:\n1.",
        "The planets of the solar system, from the sun outwards, are:\n1. Mercury\n2.",
        "Shopping list for pancakes:\n- flour\n- milk\n-",
    ),
    "code": (
        "def fibonacci(n):\n    if n < 2:\n        return n\n",
        "for i in range(1, 101):\n    if i % 15 == 0:\n        print('FizzBuzz')\n",
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(",
    ),
}


def built_in(count: int | None = None) -> list[Question]:
    """Twelve short prompts of four kinds, for runs without any file."""
    lines = [(kind, text) for kind, texts in BUILT_IN.items() for text in texts]
    questions = [
        Question(number=number, category=kind, text=text)
        for number, (kind, text) in enumerate(lines)
    ]
    return balanced(questions, count)


def spec_bench(path: Path, count: int | None = None) -> list[Question]:
    """First turns of a Spec-Bench `question.jsonl`; `count` of them, spread over the categories.

    Raises InputError for a line that is not such a question.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    questions = [_question(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not questions:
        raise InputError(f"{path}: no questions")
    return balanced(questions, count)


def _question(number: int, line: str) -> Question:
    try:
        row = json.loads(line)
        return Question(
            number=int(row.get("question_id", number)),
            category=str(row.get("category", "all")),
            text=str(row["turns"][0]),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"line {number} is no Spec-Bench question: {error!r}") from error


def balanced(questions: Sequence[Question], count: int | None) -> list[Question]:
    """The first `count` questions, one of each category in turn; all of them for None.

    Raises InputError when there are fewer.
    """
    if count is None:
        return list(questions)
    if count > len(questions):
        raise InputError(f"{count} prompts wanted, {len(questions)} there")
    kinds = {question.category: 0 for question in questions}
    columns = [[q for q in questions if q.category == kind] for kind in kinds]
    turns = chain.from_iterable(zip_longest(*columns))
    return [question for question in turns if question is not None][:count]


def equal_lengths(prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Every prompt repeated or cut to `length` tokens."""
    return [(list(prompt) * (1 + length // len(prompt)))[:length] for prompt in prompts]


def random_lengths(
    prompts: Sequence[Sequence[int]], low: int, high: int, seed: int
) -> list[list[int]]:
    """Every prompt repeated or cut to a length drawn evenly from low .. high."""
    generator = random.Random(seed)
    return [equal_lengths([prompt], generator.randint(low, high))[0] for prompt in prompts]


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times in seconds of `count` requests at `rate` per second, the first at 0."""
    generator = random.Random(seed)
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + generator.expovariate(rate))
    return times[:count]
