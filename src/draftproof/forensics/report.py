"""The report as one HTML file: inline styles and drawings, nothing from the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

WIDTH, HEIGHT = 420, 150  # of a drawing, in SVG units
CELLS = 64  # columns of the heat map at most
MAP_ROWS = 60  # rows of the heat map at most
SIDE_BY_SIDE = 5

HEADLINES = {
    "exact": "Outputs are identical",
    "numeric": "Outputs differ by rounding only",
    "harness": "The two sides were not asked the same or are not set up alike",
    "bug": "Outputs differ because of a bug",
    "undecided": "Outputs differ and the evidence does not decide why",
}


def render(report: dict[str, Any]) -> str:
    """HTML of a report as `Examination.as_dict` gives it."""
    environment = Environment(
        loader=PackageLoader("draftproof.forensics", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "short": short, "token": token}
    return environment.get_template("report.html.j2").render(
        report=report,
        headline=headline(report),
        curve=curve(report["match"]["survival"]),
        heat=heat_map(report["rows"]),
        margins=margins(report["rows"], report["noise"]["band"]),
        forks=[row for row in report["rows"] if row["fork"] is not None][:SIDE_BY_SIDE],
        width=WIDTH,
        height=HEIGHT,
    )


def headline(report: dict[str, Any]) -> str:
    """The verdict in a sentence."""
    verdict, match = report["verdict"], report["match"]
    if verdict["cause"] == "bug" and match["exact"] == match["rows"]:
        return f"Outputs are identical, and something is wrong: {verdict['kind']}"
    if verdict["cause"] == "undecided" and match["unanswered"]:
        return "Some rows were not answered: nothing can be said of the whole"
    text = HEADLINES[verdict["cause"]]
    return f"{text}: {verdict['kind']}" if verdict["kind"] else text


def percent(share: float | None) -> str:
    """100% only when it is all of it."""
    if share is None:
        return "unknown"
    rounded = f"{share:.1%}"
    return "99.9%" if rounded == "100.0%" and share < 1 else rounded


def short(value: float | None) -> str:
    """A number in three digits."""
    return "–" if value is None else f"{value:.3g}"


def token(one: dict[str, Any]) -> str:
    """Text of a token with its line ends to be seen, or its id where nobody decodes."""
    text = one["text"]
    return str(one["id"]) if text is None else text.replace("\n", "↵") or f"<{one['id']}>"


# -- drawings: geometry here, marks in the template ------------------------------------------------


def curve(values: Sequence[float]) -> dict[str, Any]:
    """Survival as a staircase of points."""
    last = max(1, len(values) - 1)
    points: list[tuple[float, float]] = []
    for n, value in enumerate(values):
        x, y = n / last * WIDTH, (1 - value) * HEIGHT
        if points:
            points.append((x, points[-1][1]))
        points.append((x, y))
    return {
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in points),
        "last": len(values) - 1,
        "end": values[-1] if values else 1.0,
    }


def heat_map(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One line per row: equal up to the fork, then coloured by the cause."""
    longest = max((max(len(r["reference"]), len(r["candidate"])) for r in rows), default=1)
    scale = 1 / max(1, longest)
    lines = []
    for row in sorted(rows, key=_fork_first)[:MAP_ROWS]:
        length = max(len(row["reference"]), len(row["candidate"]))
        at = length if row["fork"] is None else row["fork"]["position"]
        cause = row["verdict"]["cause"] if row["verdict"] else "exact"
        lines.append(
            {
                "index": row["index"],
                "same": at * scale * WIDTH,
                "rest": (length - at) * scale * WIDTH,
                "cause": cause,
                "title": f"row {row['index']}: {_told(row)}",
            }
        )
    return {"lines": lines, "longest": longest, "left_out": len(rows) - len(lines)}


def _fork_first(row: dict[str, Any]) -> tuple[int, int]:
    if row["error"]:
        return (0, 0)
    return (1, row["fork"]["position"]) if row["fork"] is not None else (2, row["index"])


def _told(row: dict[str, Any]) -> str:
    if row["error"]:
        return str(row["error"])
    if row["fork"] is None:
        return "equal"
    return f"{row['verdict']['cause']} at token {row['fork']['position']}"


def margins(rows: Sequence[dict[str, Any]], band: float | None) -> dict[str, Any] | None:
    """Gaps at the forks with the noise band; None without any gap.

    Linear where the band is to be seen on a linear axis; else by decades, with ties at the left.
    """
    known = [row for row in rows if row["fork"] is not None and row["fork"]["gap"] is not None]
    if not known:
        return None
    explained = 2 * (band or 0.0)
    largest = max([explained, *(row["fork"]["gap"] for row in known)]) or 1.0
    axis = _decades(known, explained) if 0 < explained < largest / 20 else _linear(largest)
    dots = [
        {
            "x": axis.place(row["fork"]["gap"]),
            "y": (n + 1) * HEIGHT / (len(known) + 1),
            "cause": row["verdict"]["cause"],
            "title": f"row {row['index']}: {short(row['fork']['gap'])}",
        }
        for n, row in enumerate(known)
    ]
    ticks = [{"x": axis.place(value), "label": short(value)} for value in axis.ticks]
    return {"dots": dots, "ticks": ticks, "band": axis.place(explained) if explained else 0.0}


@dataclass(frozen=True)
class _Axis:
    place: Callable[[float], float]
    ticks: Sequence[float]


def _linear(largest: float) -> _Axis:
    """From 0 to a little beyond the largest, with three to six round ticks."""
    rough = largest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    end = largest * 1.08
    return _Axis(lambda value: value / end * WIDTH, [step * n for n in range(int(end / step) + 1)])


def _decades(known: Sequence[dict[str, Any]], explained: float) -> _Axis:
    values = [v for v in [*(row["fork"]["gap"] for row in known), explained] if v > 0]
    low = math.floor(math.log10(min(values))) - 1  # the first decade is for 0
    high = max(low + 2, math.ceil(math.log10(max(values))))

    def place(value: float) -> float:
        return 0.0 if value <= 0 else (math.log10(value) - low) / (high - low) * WIDTH

    every = max(1, (high - low) // 5)
    return _Axis(place, [0.0, *(10.0**power for power in range(high, low, -every))])
