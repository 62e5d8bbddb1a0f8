"""Every causal type of the installed transformers: right, or refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftproof.api import Pair
from draftproof.errors import NumericsError, UnsupportedModelError
from draftproof.testing.comparing import assert_same_tokens, random_prompts
from draftproof.testing.drafters import ScriptedDrafter
from draftproof.testing.every_type import NOT_MADE, class_of, tiny_model_of
from draftproof.testing.oracle import stock_generate

LENGTHS = (3, 14, 9)
NEW_TOKENS = 12
K = 3
WRONG_AT = (0, 3, 1)  # a row whose drafts are all rejected, all accepted, some accepted
VARIED = 8  # different tokens in the rows of a model that is not stuck
TIERS = ("fast", "exact")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one type.

    kind:   right, refused, differs, fails, or not made
    detail: the reason, or in which tiers it is right
    """

    model_type: str
    model_class: str
    kind: str
    detail: str = ""

    @property
    def acceptable(self) -> bool:
        """No silent difference, and no error without a reason."""
        return self.kind in ("right", "refused", "not made")


def examine(model_type: str) -> Outcome:
    """Make a tiny model of a type and decode a ragged batch with it."""
    kind, detail = _made_and_run(model_type)
    return Outcome(
        model_type=model_type,
        model_class=class_of(model_type),
        kind=kind,
        detail=" ".join(detail.split()),
    )


def _made_and_run(model_type: str) -> tuple[str, str]:
    if model_type in NOT_MADE:
        return "not made", NOT_MADE[model_type]
    try:
        model = tiny_model_of(model_type)
    except Exception as error:
        return "not made", f"{type(error).__name__}: {error}"
    try:
        return _run(model)
    except UnsupportedModelError as error:
        return "refused", str(error)
    except AssertionError as error:
        return "differs", str(error)
    except Exception as error:
        return "fails", f"{type(error).__name__}: {error}"


def _run(model: Any) -> tuple[str, str]:
    """The batch in both tiers against `generate` on each row alone. Raises what goes wrong."""
    _pair(model, "fast", "ngram")  # a refusal comes before `generate` is asked
    model.generation_config = type(model.generation_config)(pad_token_id=0)  # no eos
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    prompts = random_prompts(LENGTHS, vocab_size=size)
    own = [stock_generate(model, prompt, NEW_TOKENS + K) for prompt in prompts]
    expected = [tokens[:NEW_TOKENS] for tokens in own]
    right = []
    for tier in TIERS:
        for drafter in ("ngram", ScriptedDrafter(continuations=own, wrong_at=WRONG_AT)):
            try:
                pair = _pair(model, tier, drafter)
            except NumericsError as error:
                return "right", f"fast; {error}{_variety(expected)}"
            results = pair.generate(
                prompts, max_new_tokens=NEW_TOKENS, num_speculative_tokens=K, eos_token_id=()
            )
            assert_same_tokens([r.token_ids for r in results], expected, tier)
        right.append(tier)
    return "right", ", ".join(right) + _variety(expected)


def _variety(expected: list[list[int]]) -> str:
    """A remark where the rows say so little that much would agree with them."""
    found = len({token for tokens in expected for token in tokens})
    return "" if found >= VARIED else f" (only {found} tokens occur in {len(expected)} rows)"


def _pair(model: Any, tier: str, drafter: Any) -> Pair:
    return Pair(model, drafter, numerics=tier)
