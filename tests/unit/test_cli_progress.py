"""What the bar counts, without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from draftproof.cli.console import put
from draftproof.cli.progress import Meter, ProgressBar
from draftproof.cli.summary import percent
from draftproof.engine.events import RoundEvent, RowRound
from draftproof.types import FinishReason


def row(
    index: int, emitted: int, *, drafted: int = 0, accepted: int = 0, end: bool = False
) -> RowRound:
    return RowRound(
        index=index,
        slot=index,
        kv_len=0,
        fed=1,
        drafts=tuple(range(drafted)),
        target_ids=tuple(range(drafted + 1)) if emitted else (),
        accepted=accepted,
        emitted=tuple(range(emitted)),
        finish_reason=FinishReason.EOS if end else None,
    )


def round_of(*rows: RowRound) -> RoundEvent:
    return RoundEvent(number=1, rows=rows, waiting=0)


def test_rounds_add_up() -> None:
    meter = Meter([10, 10], clock=iter([0.0, 2.0]).__next__)
    meter.on_round(round_of(row(0, 0), row(1, 1)))  # row 0 reads its prompt
    meter.on_round(round_of(row(0, 3, drafted=4, accepted=2), row(1, 2, drafted=4, accepted=4)))
    assert (meter.tokens, meter.drafted) == (6, 8)
    assert meter.accepted == 2 + 2  # the second row was cut: two of its four count
    assert meter.status() == "0/2 requests, 3.0 tokens/s, 50% accepted"


def test_a_row_that_ends_early_shortens_the_way_that_is_left() -> None:
    meter = Meter([10, 10])
    meter.on_round(round_of(row(0, 4, end=True), row(1, 4)))
    assert (meter.finished, meter.tokens, meter.total) == (1, 8, 14)


def test_nothing_is_drawn_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(Meter([4])) as bar:
        bar.on_round(round_of(row(0, 4, end=True)))
    assert bar.meter.tokens == 4
    assert capsys.readouterr().err == ""


def test_a_bar_on_the_terminal_takes_no_results_from_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = io.StringIO()
    with ProgressBar(Meter([4]), Console(file=terminal, force_terminal=True)) as bar:
        bar.on_round(round_of(row(0, 4, end=True)))
        put("a result")
        print("another")
    assert capsys.readouterr().out == "a result\nanother\n"
    assert "1/1 requests" in terminal.getvalue()
    assert "result" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("share", "words"), [(1.0, "100.0%"), (0.99999, "99.9%"), (0.5, "50.0%"), (0.0, "0.0%")]
)
def test_percent(share: float, words: str) -> None:
    assert percent(share) == words
