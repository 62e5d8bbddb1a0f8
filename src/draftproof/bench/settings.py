"""What `draftproof bench paper` is asked for, and the cells that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from draftproof.bench.cells import FAULTY, PLAIN, PLAIN_PADDED, WAYS, Cell
from draftproof.engine.methods import ExSpec
from draftproof.errors import InputError

GRID, SHARES, WINDOWS, SERVING, REALIGNMENT = SECTIONS = (
    "grid",
    "shares",
    "windows",
    "serving",
    "realignment",
)
DEFAULT_SECTIONS = (GRID, WINDOWS, SERVING, REALIGNMENT)
EXACT_WAYS = (PLAIN, "rows")  # bit-exactness is promised for the row-anchored layout only
DEFAULT_WAYS = (PLAIN, PLAIN_PADDED, "rows", "eqspec", "exspec", "rollback", "bsp", "dsd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One reproduction of the paper's tables.

    dtypes, numerics: every combination is run in the grid, the first one in the other sections
    ways:             see `cells.WAYS`
    window_sizes:     of the section on ExSpec; `window_size` is what the grid runs it with
    length:           tokens per prompt in that section
    arrival_rate:     requests per second in the serving section; None: `LOAD` times what plain
                      decoding one at a time finishes
    separate_clocks:  time the parts of a round in runs of their own: clocks that wait for the
                      device slow it down

    Raises InputError for values that cannot be run.
    """

    ways: tuple[str, ...] = DEFAULT_WAYS
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    k: int = 5
    dtypes: tuple[str, ...] = ("auto",)
    numerics: tuple[str, ...] = ("fast",)
    num_prompts: int = 480
    max_new_tokens: int = 128
    max_input_len: int = 1024
    sections: tuple[str, ...] = DEFAULT_SECTIONS
    window_sizes: tuple[int, ...] = (8, 16, 32, 64)
    window_size: int | None = None
    sort_by_length: bool = False
    policy: str = "first_full"
    length: int = 128
    serving_batch_sizes: tuple[int, ...] = (2, 4, 8)
    arrival_rate: float | None = None
    contexts: tuple[int, ...] = (128, 512, 1024)
    realignment_batch_sizes: tuple[int, ...] = (1, 8, 32)
    realignment_tokens: int = 16
    repeats: int = 1
    seed: int = 0
    separate_clocks: bool = False

    def __post_init__(self) -> None:
        _choose("methods", self.ways, WAYS)
        _choose("sections", self.sections, SECTIONS)
        sizes = (*self.batch_sizes, *self.serving_batch_sizes, *self.realignment_batch_sizes)
        if min((self.k, self.num_prompts, self.max_new_tokens, self.repeats, *sizes)) < 1:
            raise InputError("batch sizes, K, prompts, new tokens and repeats must be 1 or more")
        ExSpec(window_size=self.window_size, policy=self.policy)

    @property
    def exspec(self) -> dict[str, Any]:
        """Options of ExSpec wherever its window is not what is varied."""
        return {
            "window_size": self.window_size,
            "sort_by_length": self.sort_by_length,
            "policy": self.policy,
        }


LOAD = 1.2  # of what plain decoding one at a time can do, so that requests queue

QUICK: dict[str, Any] = {
    "batch_sizes": (1, 4),
    "num_prompts": 8,
    "max_new_tokens": 24,
    "window_sizes": (8,),
    "serving_batch_sizes": (2,),
    "contexts": (128,),
    "realignment_batch_sizes": (1, 8),
    "realignment_tokens": 8,
    "length": 48,
}


def cells_of(settings: Settings, rate: float | None) -> list[Cell]:
    """Every run, references first. rate: of the serving section, once it is known."""
    makers = {
        GRID: _grid,
        SHARES: _shares,
        WINDOWS: _windows,
        SERVING: lambda s: _serving(s, rate),
        REALIGNMENT: _realignment,
    }
    return [cell for section in settings.sections for cell in makers[section](settings)]


def _cell(settings: Settings, section: str, way: str, batch_size: int, **changes: Any) -> Cell:
    values: dict[str, Any] = {
        "k": settings.k,
        "dtype": settings.dtypes[0],
        "numerics": settings.numerics[0],
        "num_prompts": settings.num_prompts,
        "max_new_tokens": settings.max_new_tokens,
        "method_options": settings.exspec if way == "exspec" else {},
        "clocks": not settings.separate_clocks or section in (SHARES, REALIGNMENT),
    }
    return Cell(section=section, way=way, batch_size=batch_size, **(values | changes))


def _grid(settings: Settings) -> Iterator[Cell]:
    """Every way at every batch size; plain one at a time, the reference, comes first."""
    for dtype in settings.dtypes:
        for numerics in settings.numerics:
            ways = [w for w in settings.ways if numerics != "exact" or w in EXACT_WAYS]
            runs = [(way, size) for way in ways for size in settings.batch_sizes]
            for way, size in dict.fromkeys([(PLAIN, 1), *runs]):
                yield _cell(settings, GRID, way, size, dtype=dtype, numerics=numerics)


def _shares(settings: Settings) -> Iterator[Cell]:
    for way in settings.ways:
        for size in settings.batch_sizes:
            count = min(settings.num_prompts, 2 * size)
            yield _cell(settings, SHARES, way, size, num_prompts=count)


def _windows(settings: Settings) -> Iterator[Cell]:
    size = max(settings.batch_sizes)
    for prompts in ("equal", "random"):
        shape = {"prompts": prompts, "length": settings.length}
        yield _cell(settings, WINDOWS, "eqspec", size, **shape)
        for window in settings.window_sizes:
            options = settings.exspec | {"window_size": window}
            yield _cell(settings, WINDOWS, "exspec", size, method_options=options, **shape)


def _serving(settings: Settings, rate: float | None) -> Iterator[Cell]:
    for way in settings.ways:
        for size in settings.serving_batch_sizes:
            if way not in FAULTY:
                yield _cell(settings, SERVING, way, size, rate=rate or 1.0)


def _realignment(settings: Settings) -> Iterator[Cell]:
    for length in settings.contexts:
        for size in settings.realignment_batch_sizes:
            for way in ("rows", "eqspec"):
                yield _cell(
                    settings,
                    REALIGNMENT,
                    way,
                    size,
                    prompts="context",
                    length=length,
                    num_prompts=size,
                    max_new_tokens=settings.realignment_tokens,
                )


def _choose(name: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for item in given:
        if item not in known:
            raise InputError(f"{name}: {item!r} is none of {', '.join(known)}")


def describe(settings: Settings) -> dict[str, Any]:
    """For reports."""
    return asdict(settings)
