"""What a field means that a request leaves out. Each door says which defaults it has.

`draftproof generate`          the options of its command line; without `--temperature`, greedy
`draftproof run-batch`, HTTP   OpenAI's: temperature 1, that is sampled
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Defaults of a door, in the engine's names (`RequestOptions`).

    max_new_tokens: None for OpenAI's: 16 for completions, for chats what the context still holds
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None


# seeded: the seed that an answer reports gives the same text again, whatever else is running
OPENAI = Defaults(options={"temperature": 1.0, "coupling": "seeded"})
COMPLETION_TOKENS = 16  # of OpenAI's /v1/completions
