"""Rows draft equally far in every round here, unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .subjects import K


@pytest.fixture(autouse=True, scope="module")
def fixed_drafts() -> Iterator[None]:
    """K where a test names none: what auto would choose depends on the clock, and may be 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftproof.api.default_k", lambda schedule, anchored: K)
        yield
