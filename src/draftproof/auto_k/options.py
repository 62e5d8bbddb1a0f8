"""From the options of a call to how far its rows draft."""

from __future__ import annotations

from typing import Literal

from draftproof.auto_k.auto import Auto
from draftproof.auto_k.state import AutoKState
from draftproof.engine.schedule import CONSTANT, Adaptive, Schedule
from draftproof.errors import InputError, UnsupportedArgumentError
from draftproof.sampling import whole_number

AUTO: Literal["auto"] = "auto"
FIXED = 4  # K where nothing was said and K must not be chosen
SCHEDULES = ("constant", "adaptive")


def default_k(schedule: str | None, *, anchored: bool) -> int | str:
    """`num_speculative_tokens` where nobody said it.

    A schedule is one of a number, and the paper's methods draft the same in every round.
    """
    return AUTO if schedule is None and anchored else FIXED


def drafting(
    drafted: int | str, schedule: str | None, most: int, state: AutoKState
) -> tuple[int, Schedule]:
    """The most that a row drafts per round, and the schedule that decides how many of them.

    most: the limit of "auto"
    Raises InputError or UnsupportedArgumentError for values that mean nothing.
    """
    name = "num_speculative_tokens_schedule"
    if schedule is not None and schedule not in SCHEDULES:
        choices = ", ".join(SCHEDULES)
        raise UnsupportedArgumentError(f"{name}={schedule!r}; choose one of {choices}")
    if isinstance(drafted, str):
        if drafted != AUTO:
            raise UnsupportedArgumentError(
                f'num_speculative_tokens={drafted!r}; give a number or "auto"'
            )
        most = whole_number("max_num_speculative_tokens", most, 1)
        if schedule == "constant":
            raise InputError(f"{name}='constant' needs a number to keep to")
        return most, Adaptive() if schedule == "adaptive" else Auto(state=state)
    drafted = whole_number("num_speculative_tokens", drafted, 0)
    return drafted, Adaptive() if schedule == "adaptive" else CONSTANT
