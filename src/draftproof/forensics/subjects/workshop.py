"""What several subjects may share: models in other dtypes, pairs that are bound and probed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from draftproof.forensics.subjects.casting import cast

Made = TypeVar("Made")


@dataclass(kw_only=True)
class Workshop:
    """Things that are dear to make and hold no state of a run, each made once.

    Keys name models by identity, so the models are kept as long as what was made of them.
    """

    _made: dict[Hashable, tuple[Any, tuple[Any, ...]]] = field(default_factory=dict, repr=False)

    def cast(self, model: Any, dtype: str | None) -> Any:
        """The model in a dtype; None is as loaded."""
        if dtype is None:
            return model
        return self.once(("cast", id(model), dtype), lambda: cast(model, dtype), model)

    def once(self, key: Hashable, make: Callable[[], Made], *kept: Any) -> Made:
        """What `make` gives the first time; `kept` are the objects whose ids are in the key."""
        if key not in self._made:
            self._made[key] = (make(), kept)
        made: Made = self._made[key][0]
        return made
