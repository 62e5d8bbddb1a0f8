"""What every test gets: one thread, no network, and markers that need something skipped without it.

Environment variables are set before torch is first imported, hence at the top of this file.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# The models of the tests are tiny: threads inside one operation cost more than they give.
# Values from outside win, so that a run with more threads can be asked for.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test downloads anything; a mistake here must fail at once and not after a time-out.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Verdicts of the calibration are reached anew by every test run, and not left with the user.
os.environ.setdefault("DRAFTPROOF_CACHE", tempfile.mkdtemp(prefix="draftproof-tests-"))

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
REAL_MODELS = os.environ.get("DRAFTPROOF_MODELS")

# The first example of a property pays for imports and allocations: time per example says nothing.
hypothesis.settings.register_profile("draftproof", deadline=None, print_blob=True)
# In CI hypothesis chooses its own profile, which is deterministic and has no deadline either.
if "CI" not in os.environ:
    hypothesis.settings.load_profile("draftproof")


@pytest.hookimpl(trylast=True)  # after `-m` has deselected: torch is imported only for gpu tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, reason in _missing(item).items():
            item.add_marker(pytest.mark.skip(reason=f"{name}: {reason}"))


def _missing(item: pytest.Item) -> dict[str, str]:
    """The markers of a test whose needs this machine does not meet, and why."""
    missing = {}
    if item.get_closest_marker("shared") and not SHARED.is_dir():
        missing["shared"] = f"no folder {SHARED.name} beside the checkout"
    if item.get_closest_marker("real_model") and not REAL_MODELS:
        missing["real_model"] = "DRAFTPROOF_MODELS names no folder with weights"
    if item.get_closest_marker("gpu") and not _cuda():
        missing["gpu"] = "no CUDA device"
    return missing


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder beside the checkout that tests marked `shared` read."""
    return SHARED


@pytest.fixture(scope="session")
def real_models() -> Path:
    """The folder with real weights for tests marked `real_model`."""
    assert REAL_MODELS, "only tests marked real_model may use this fixture"
    return Path(REAL_MODELS)
