"""Whether a model's own forward and this package's agree, in the steps that decoding takes.

A list of supported models cannot know every model: a mask, a scale or a position may be the
model's own business. So the model's own `generate` reads a few rows one at a time, an executor
reads the same rows together, and every module's output is compared for every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from draftproof.errors import UnsupportedModelError
from draftproof.executors.trial import Trial
from draftproof.executors.walks import BEFORE, LEAST, PROMPTS, short_walks, start_walks
from draftproof.hf import BoundModel
from draftproof.hf.identity import fingerprint, identity, settings_of_length
from draftproof.numerics.store import keep_json, key_of, recall_json

MEMORY = 1 << 29  # bytes of keys and values that are made up to cross a length when binding


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the comparison found.

    tokens:  how many were compared
    differs: the first module that differs; None: rows are right
    crossed: lengths across which rows are right as well
    filled:  lengths to which the tokens of one forward may add up while rows are shorter
    wrong:   lengths beyond which rows are wrong, and the first module that differs there
    """

    tokens: int = 0
    differs: str | None = None
    crossed: tuple[int, ...] = ()
    filled: tuple[int, ...] = ()
    wrong: dict[int, str] = field(default_factory=dict)

    @property
    def limit(self) -> int | None:
        """Tokens that a row may have; None: as many as the model has positions."""
        return min(self.wrong, default=None)

    def describe(self) -> str:
        """One line for reports."""
        lengths = f", across lengths {', '.join(map(str, self.crossed))}" if self.crossed else ""
        limit = "" if self.limit is None else f"; wrong beyond {self.limit} tokens, refused there"
        return f"equal to its own generate on {self.tokens} tokens{lengths}{limit}"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Proof:
        wrong = {int(length): where for length, where in data["wrong"].items()}
        lists = {name: tuple(data[name]) for name in ("crossed", "filled")}
        return cls(**data | lists | {"wrong": wrong})


@dataclass(slots=True)
class Proven:
    """A model that was compared, to go on where the proof ended.

    judge: the model as it was given, which may wrap the one that is bound
    """

    bound: BoundModel
    judge: Any
    proof: Proof
    key: str

    def require(self, *, length: int, together: int) -> None:
        """Rows may get this long, and this many tokens be read in one forward.

        What was too much work when the model was bound is compared now, if it comes into play.
        Raises UnsupportedModelError where rows would be wrong.
        """
        lengths = _lengths(self.bound)
        left = [n for n in lengths if n < length and not self._known(n)]
        filled = [n for n in lengths if n < together and n not in self.proof.filled]
        if left or filled:
            with Trial.of(self.bound, self.judge) as trial:
                self.proof = _cross(trial, _fill(trial, self.proof, filled), left)
            keep_json(self.key, asdict(self.proof))
        if self.proof.differs is not None:
            raise UnsupportedModelError(_refusal(self.bound, self.proof.differs))
        limit = self.proof.limit
        if limit is not None and length > limit:
            where = self.proof.wrong[limit]
            raise UnsupportedModelError(
                f"{_refusal(self.bound, where)}. That is so for rows of more than {limit} tokens, "
                f"and {length} are asked for: choose shorter prompts or fewer max_new_tokens, or "
                f"end rows there with max_model_len={limit}"
            )

    def _known(self, length: int) -> bool:
        return length in self.proof.crossed or length in self.proof.wrong


def prove(
    bound: BoundModel, judge: Any = None, *, weights: str | None = None, fresh: bool = False
) -> Proven:
    """Compare a model with its own `generate`, or recall from disk that it was done.

    judge:   the model as it was given, where that wraps the one that is bound
    weights: their fingerprint, taken before packing dropped some of them
    fresh:   compare again even so

    To be called again when weights have changed: a bias that was zero makes no difference.
    Raises UnsupportedModelError, naming the first module that differs.
    """
    judge = bound.model if judge is None else judge
    weights = fingerprint(bound.model) if weights is None else weights
    key = key_of(identity(bound.model, judge, weights))
    found = None if fresh else _recall(key)
    if found is None:
        found = _compare(bound, judge)
        keep_json(key, asdict(found))
    if found.differs is not None:
        raise UnsupportedModelError(_refusal(bound, found.differs))
    return Proven(bound, judge, found, key)


def _recall(key: str) -> Proof | None:
    try:
        data = recall_json(key)
        return None if data is None else Proof.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # a damaged file


def _refusal(bound: BoundModel, where: str) -> str:
    return (
        f"{type(bound.model).__name__}: its own generate and rows in a batch come to different "
        f"results, first in {where}: what happens there depends on more than a token's position "
        "and the tokens before it (a mask, a scale, positions or a state of the model's own)"
    )


def _compare(bound: BoundModel, judge: Any) -> Proof:
    if bound.max_positions is not None and bound.max_positions < LEAST:
        return Proof()
    walks = start_walks(bound.vocab_size, bound.max_positions)
    proof = Proof(tokens=sum(len(walk.passage.tokens) for walk in walks))
    with Trial.of(bound, judge) as trial:
        differs = trial.differs(walks)
        if differs is not None:
            return replace(proof, differs=differs)
        lengths = _lengths(bound)
        proof = _fill(trial, proof, [n for n in lengths if trial.affordable(n)])
        return _cross(trial, proof, [n for n in lengths if trial.memory_bytes(n) < MEMORY])


def _lengths(bound: BoundModel) -> list[int]:
    """Lengths that the first rows do not cross and at which the model may change."""
    most = bound.max_positions
    found = settings_of_length(bound.config)
    return [n for n in found if n > PROMPTS[0] and (most is None or n + BEFORE < most)]


def _fill(trial: Trial, proof: Proof, lengths: Sequence[int]) -> Proof:
    """The proof, with what happens where the tokens of a forward add up to these lengths."""
    for length in lengths:
        if proof.differs is None:
            proof = replace(
                proof,
                differs=trial.differs(short_walks(trial.bound.vocab_size, length)),
                filled=(*proof.filled, length),
            )
    return proof


def _cross(trial: Trial, proof: Proof, lengths: Sequence[int]) -> Proof:
    """The proof, with what happens across these lengths."""
    for length in lengths if proof.differs is None else ():
        where = trial.crossing(length)
        if where is None:
            proof = replace(proof, crossed=tuple(sorted({*proof.crossed, length})))
        else:
            proof = replace(proof, wrong={**proof.wrong, length: where})
    return proof
