"""Would another setup explain the tokens: another prompt, another default, sampling?

None of these is a mistake of speculation. The target in this process is given the candidate's own
tokens and asked, at each of them, what it would have said under the changed setup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftproof.forensics.hypotheses import TELLING, Explanation, weigh
from draftproof.forensics.lab import Lab
from draftproof.forensics.scoring import logits_after, tops_after
from draftproof.forensics.subjects.base import Answer, Run, Task

ROWS = 6  # rows that are tried
NEARLY_ALL = 0.98  # share of the tokens that a default must give
CUTS = (1, 2, 3, 4, 8, 16)
PENALTIES = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)
NGRAMS = (2, 3, 4)
TEMPERATURES = (0.3, 0.5, 0.7, 1.0, 1.3)
NOT_BEST, DEVIATION = 5, 3.5  # tokens that are not the best; standard errors of their surprise


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What became of a hypothesis: `hits` of `trials` tokens or rows, in words where it holds."""

    holds: bool
    hits: int
    trials: int
    words: str = ""


Told = Tried | None  # None: nothing to try it on


def differing(lab: Lab, expected: Run, found: Run) -> list[tuple[Task, Answer]]:
    """The candidate's answers that are not the reference's."""
    rows = zip(lab.inquiry.tasks, expected.answers, found.answers, strict=True)
    kept = [(t, b) for t, a, b in rows if not (a.error or b.error) and a.ids != b.ids and t.prompt]
    return kept[:ROWS]


# -- another prompt --------------------------------------------------------------------------------


def variants(prompt: Sequence[int], special: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """Prompts that a template or a limit makes of this one."""
    ids = list(prompt)
    yield "its first token twice", [ids[0], *ids]
    for token in special:
        yield f"token {token} before it", [token, *ids]
        yield f"token {token} behind it", [*ids, token]
    for cut in (*CUTS, len(ids) // 2):
        if 0 < cut < len(ids):
            yield f"its first {cut} tokens cut off", ids[cut:]
            yield f"its last {cut} tokens cut off", ids[:-cut]
    if len(ids) > 1:
        yield "its second token left out", [ids[0], *ids[2:]]


def prompts(lab: Lab, expected: Run, found: Run) -> Told:
    """Whether most differing rows are what the target says to a variant of their prompts."""
    model = lab.model(lab.clean)
    tried = [_best_prompt(model, *row) for row in differing(lab, expected, found)]
    best = [one for one in tried if one is not None]
    if not best:
        return None
    good = [one for one in best if one.by_scores or one.by_tokens and one.telling >= TELLING]
    words = f"for {good[0].name}, in {len(good)} of {len(best)} rows" if good else ""
    told = sum(max(one.told, TELLING) for one in good)
    return Tried(holds=2 * len(good) > len(best), hits=told, trials=told, words=words)


def _best_prompt(model: Any, task: Task, answer: Answer) -> Explanation | None:
    if len(answer.ids) < 4:
        return None
    span = range(min(len(answer.ids), 48))
    right = _tops(model, task.prompt, answer)
    special = _special(model)
    tried = [
        weigh(name, span, answer, right, _tops(model, ids, answer))
        for name, ids in variants(task.prompt, special)
    ]
    return max(tried, key=lambda one: (one.by_scores, one.told - one.truth, one.given))


def _tops(model: Any, prompt: Sequence[int], answer: Answer) -> list[Any]:
    """In front of each of the answer's tokens, were this its prompt."""
    return tops_after(model, [*prompt, *answer.ids])[len(prompt) - 1 :]


def _special(model: Any) -> list[int]:
    """Ids that a tokenizer or a template may add."""
    found = [getattr(model.config, name, None) for name in ("bos_token_id", "eos_token_id")]
    return sorted({one for one in found if isinstance(one, int) and one < model.config.vocab_size})


# -- another default -------------------------------------------------------------------------------


def defaults(lab: Lab, expected: Run, found: Run) -> Told:
    """Whether a repetition penalty, or no repeated n-gram, gives all tokens of the rows."""
    model = lab.model(lab.clean)
    rows = [_Row.of(model, *row) for row in differing(lab, expected, found)]
    if not any(len(row.ids) > TELLING for row in rows):
        return None
    own = getattr(getattr(model, "generation_config", None), "repetition_penalty", None)
    values = (*PENALTIES, own) if own and own != 1.0 else PENALTIES
    tried = [(f"repetition_penalty={p:g}", _penalised(p)) for p in values]
    tried += [(f"no_repeat_ngram_size={n}", _no_repeat(n)) for n in NGRAMS]
    return max((_given(rows, name, change) for name, change in tried), key=lambda one: one.hits)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """logits: [n, V] in front of each of `ids`; text: prompt and ids."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logits: Tensor

    @classmethod
    def of(cls, model: Any, task: Task, answer: Answer) -> _Row:
        start = len(task.prompt) - 1
        logits = logits_after(model, [*task.prompt, *answer.ids])[start : start + len(answer.ids)]
        return cls(prompt=task.prompt, ids=answer.ids, logits=logits)


Change = Callable[[Tensor, list[int]], Tensor]  # logits [V] and the text before them


def _penalised(penalty: float) -> Change:
    def change(logits: Tensor, text: list[int]) -> Tensor:
        seen = torch.tensor(sorted(set(text)))
        changed = logits.clone()
        own = changed[seen]
        changed[seen] = torch.where(own > 0, own / penalty, own * penalty)
        return changed

    return change


def _no_repeat(size: int) -> Change:
    def change(logits: Tensor, text: list[int]) -> Tensor:
        tail, changed = text[len(text) - size + 1 :], logits.clone()
        for start in range(len(text) - size + 1):
            if text[start : start + size - 1] == tail:
                changed[text[start + size - 1]] = -torch.inf
        return changed

    return change


def _given(rows: Sequence[_Row], name: str, change: Change) -> Tried:
    """Tokens that the changed logits give, and those of them that the plain ones do not."""
    given = total = telling = told = 0
    for row in rows:
        for place, token in enumerate(row.ids):
            plain = int(row.logits[place].argmax())
            best = int(change(row.logits[place], [*row.prompt, *row.ids[:place]]).argmax())
            total, given = total + 1, given + (best == token)
            telling, told = telling + (best != plain), told + (best == token != plain)
    holds = given >= NEARLY_ALL * total and told >= max(TELLING, NEARLY_ALL * telling)
    words = f"{name} gives {given} of {total} tokens, {told} of them others than without"
    return Tried(holds=holds, hits=given, trials=total, words=words if holds else "")


# -- sampling --------------------------------------------------------------------------------------


def sampled(lab: Lab, expected: Run, found: Run) -> Told:
    """Whether the tokens are as surprising as draws at some temperature, and not all the best."""
    rows = [_Row.of(lab.model(lab.clean), *row) for row in differing(lab, expected, found)]
    if not rows:
        return None
    logits = torch.cat([row.logits for row in rows]).double()  # [N, V]
    ids = torch.tensor([token for row in rows for token in row.ids])
    other = int((logits.argmax(-1) != ids).sum())
    off, warmth = min((abs(_surprise(logits / t, ids)), t) for t in TEMPERATURES)
    holds = other >= NOT_BEST and off < DEVIATION
    words = f"{other} are not the best; as surprising as at temperature {warmth:g}"
    return Tried(holds=holds, hits=other, trials=len(ids), words=words if holds else "")


def _surprise(logits: Tensor, ids: Tensor) -> float:
    """Standard errors between the tokens' surprise and what draws from these logits [N, V] have."""
    logs = logits.log_softmax(-1)
    probabilities = logs.exp()
    entropy = -(probabilities * logs).sum(-1)
    variance = (probabilities * logs**2).sum(-1) - entropy**2
    told = -logs.gather(-1, ids[:, None])[:, 0]
    return float((told - entropy).sum() / variance.sum().clamp_min(1e-9).sqrt())
