"""Models for the benchmarks: loaded once per number format, paired once per method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from draftproof.api import Pair
from draftproof.engine.methods import Method
from draftproof.hf import load_model, load_tokenizer

NGRAM = "ngram"


@dataclass(kw_only=True)
class LoadedModels:
    """A target and a draft by name; only one number format of them is in memory at a time.

    draft: a folder or a hub id, or "ngram"
    """

    target: str
    draft: str
    device: torch.device
    _dtype: str | None = field(default=None, init=False)
    _parts: tuple[Any, Any] = field(default=(None, None), init=False)
    _pairs: dict[Any, Pair] = field(default_factory=dict, init=False)

    def pair(self, dtype: str, numerics: str, method: Method) -> Pair:
        """A target and its draft in one number format, under one method."""
        self._load(dtype)
        key = (numerics, method)
        if key not in self._pairs:
            target, draft = self._parts
            self._pairs[key] = Pair(
                target,
                draft,
                tokenizer=load_tokenizer(self.target),
                draft_tokenizer=None if self.draft == NGRAM else load_tokenizer(self.draft),
                numerics=numerics,
                method=method,
            )
        return self._pairs[key]

    def _load(self, dtype: str) -> None:
        if dtype == self._dtype:
            return
        self._pairs.clear()
        self._parts = (None, None)  # the old weights go before the new ones come
        self._parts = (self._model(self.target, dtype), self._model(self.draft, dtype))
        self._dtype = dtype

    def _model(self, name: str, dtype: str) -> Any:
        if name == NGRAM:
            return NGRAM
        return load_model(name, dtype=dtype, device=str(self.device), model_kwargs={})
