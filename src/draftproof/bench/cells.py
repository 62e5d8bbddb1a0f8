"""What is to be run: one cell is one configuration, and its key says which."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from draftproof.baselines import BSP, DSD
from draftproof.engine.methods import METHODS, Method, method_named
from draftproof.errors import InputError

# Ways to decode: the method, and whether anything is drafted. The two plain ones are the honest
# baselines of the methods on the same layout.
PLAIN, PLAIN_PADDED = "plain", "plain-padded"
FAULTY: Mapping[str, Method] = {"bsp": BSP(), "dsd": DSD()}
WAYS = (PLAIN, PLAIN_PADDED, *METHODS, *FAULTY)
BASELINE = {"rows": PLAIN} | dict.fromkeys(
    ("eqspec", "exspec", "rollback", "bsp", "dsd"), PLAIN_PADDED
)


def method_of(way: str, options: Mapping[str, Any]) -> Method:
    """The method behind one of WAYS. Raises InputError for another word."""
    if way in FAULTY:
        return FAULTY[way]
    if way not in WAYS:
        raise InputError(f"method {way!r}; choose from {', '.join(WAYS)}")
    name = {PLAIN: "rows", PLAIN_PADDED: "eqspec"}.get(way, way)
    return method_named(name, dict(options))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One configuration.

    section:   grid, windows, serving or realignment
    way:       one of WAYS
    prompts:   "workload" as it is; "equal", "random" or "context": cut to lengths around `length`
    clocks:    time the parts of a round
    rate:      arrivals per second, for serving; None elsewhere
    auto:      K is chosen per round, `k` at most
    """

    section: str
    way: str
    batch_size: int
    k: int
    dtype: str
    numerics: str
    num_prompts: int
    max_new_tokens: int
    method_options: Mapping[str, Any] = field(default_factory=dict)
    prompts: str = "workload"
    length: int = 0
    clocks: bool = True
    rate: float | None = None
    auto: bool = False

    @property
    def drafted(self) -> int:
        """K as it runs: plain decoding drafts nothing."""
        return 0 if self.way in (PLAIN, PLAIN_PADDED) else self.k

    @property
    def tokens(self) -> int:
        """The most tokens that are generated, a measure of the work."""
        return self.num_prompts * self.max_new_tokens

    @property
    def label(self) -> str:
        """For people."""
        words = [self.section, self.way, f"B={self.batch_size}", self.dtype, self.numerics]
        if self.prompts != "workload":
            words.append(f"{self.prompts} {self.length}")
        if self.section in ("throughput", "scaling"):
            words.append(f"K={'auto' if self.auto else self.drafted}")
        words += [f"{name}={value}" for name, value in self.method_options.items()]
        return " ".join(words)

    def key(self, models: Mapping[str, Any]) -> str:
        """Names this cell on these models and prompts; the same again is not run again."""
        settings = asdict(self)
        if not self.auto:  # results from before it existed keep their keys
            del settings["auto"]
        text = json.dumps([settings, dict(models)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
