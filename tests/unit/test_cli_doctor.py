"""`draftproof doctor`: what it reports is what the calibration found and what the clock said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftproof import __version__
from draftproof.bench import doctor
from draftproof.bench.doctor import ROUNDS, costs, examine, in_words, ranges
from draftproof.executors import calibration
from draftproof.executors.calibration import calibrate
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.numerics import store
from draftproof.numerics.shapes import FAST, NEVER, SIZES, Rows, Shapes
from draftproof.testing import tiny_model
from draftproof.types import RaggedTokens

from .cli_fakes import invoke


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "verdicts"))
    return tmp_path / "verdicts"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few repeats as there can be."""
    monkeypatch.setattr(doctor, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model whose short context is probed in a moment."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model().save_pretrained(folder)
    return folder


def report(target: Path, *arguments: str, code: int = 0) -> Any:
    run = invoke("doctor", "--target", target, *arguments, "--json")
    assert run.exit_code == code, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((), "any"),
        (SIZES, "1..512"),
        (tuple(n for n in SIZES if n >= 40), "40..512"),
        ((*(n for n in SIZES if n <= 32), 192, 224, 256), "1..32, 192..256"),
        ((1, 3, 512), "1, 3, 512"),
    ],
)
def test_row_counts_in_words(sizes: tuple[int, ...], words: str) -> None:
    assert in_words(Rows(sizes)) == words


def test_ranges_follow_what_was_tried() -> None:
    assert ranges([16, 32, 64], range(16, 65, 16)) == "16..32, 64"


def test_a_report_says_what_the_calibration_found(cache: Path, quick: None, tiny: Path) -> None:
    found = report(tiny, "--dtype", "float32", "--dtype", "bfloat16")
    assert [finding["dtype"] for finding in found["findings"]] == ["float32", "bfloat16"]
    assert (found["draftproof"], found["torch"]) == (__version__, torch.__version__)
    assert (found["threads"], found["verdicts"]) == (torch.get_num_threads(), str(cache))
    for finding in found["findings"]:
        kept = store.recall(Path(finding["file"]).stem)
        assert kept is not None
        assert kept.shapes is not None
        assert finding["promised"]
        assert not finding["kept"]
        assert finding["attention"]["view"] == kept.shapes.view
        assert finding["attention"]["barred"] == list(kept.shapes.barred)
        assert finding["attention"]["queries"] == kept.shapes.queries
        assert (finding["attention"]["width"] or NEVER) == kept.shapes.width
        rules = {rule["kind"]: tuple(rule["sizes"]) for rule in finding["products"]}
        assert rules == {kind: kept.shapes.rows_of(kind).sizes for kind in rules}
        assert rules.keys() >= kept.shapes.products.keys()
        assert [(c["rows"], c["width"]) for c in finding["costs"]] == list(ROUNDS)
        assert all(min(cost["fast_ms"], cost["exact_ms"]) > 0 for cost in finding["costs"])


def test_a_verdict_is_used_again_unless_asked(cache: Path, quick: None, tiny: Path) -> None:
    one = ("--dtype", "float32")
    kept = [report(tiny, *one, *more)["findings"][0]["kept"] for more in ((), (), ("--fresh",))]
    assert kept == [False, True, False]


def test_a_format_that_is_not_promised_is_named_and_fails(
    cache: Path, quick: None, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = calibration.row_rule

    def not_in_16_bits(run: Any, rows: torch.Tensor) -> Rows | None:
        # without a 16-bit kernel the product itself runs in float32
        return None if ask["bfloat16"] else rule(run, rows)

    ask = {"bfloat16": False}
    monkeypatch.setattr(calibration, "row_rule", not_in_16_bits)
    probe = calibration._probe

    def noting(model: BoundModel, longest: int) -> Any:
        ask["bfloat16"] = model.dtype is torch.bfloat16
        return probe(model, longest)

    monkeypatch.setattr(calibration, "_probe", noting)
    found = report(tiny, "--dtype", "float32", "--dtype", "bfloat16", code=1)["findings"]
    assert [finding["promised"] for finding in found] == [True, False]
    assert "model.layers.0.self_attn" in found[1]["failing"]
    assert found[1]["costs"] == []
    assert {rule["rows"] for rule in found[1]["products"]} == {"-"}
    run = invoke("doctor", "--target", tiny, "--dtype", "bfloat16")
    assert run.exit_code == 1
    assert "no: " in run.stdout
    assert "layers.0" in "".join(run.stdout.split())


def test_tables_of_the_embedded_model(cache: Path, quick: None) -> None:
    run = invoke("doctor", "--dtype", "float32")
    assert run.exit_code == 0, run.stderr
    for words in ("promised", "mlp.down_proj", "8 x 5", "key view, multiple of", "verdicts: "):
        assert words in run.stdout


def test_threads_are_those_asked_for(cache: Path, quick: None, tiny: Path) -> None:
    before = torch.get_num_threads()
    try:
        assert report(tiny, "--dtype", "float32", "--threads", "2")["threads"] == 2
    finally:
        torch.set_num_threads(before)


def test_a_folder_that_is_not_there_is_one_line_and_exit_2() -> None:
    run = invoke("doctor", "--target", "/no/such/folder")
    assert (run.exit_code, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert "no such folder: /no/such/folder" in run.stderr


def test_a_cost_compares_the_two_tiers(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    """A tier that is slowed down by a known amount is found to be slower by that amount."""
    bound = BoundModel(tiny_model())
    exact = Shapes(tokens=2)
    clock = [0.0]
    fed: list[tuple[Shapes, int]] = []
    forward = RowsExecutor.forward

    def slow(self: RowsExecutor, tokens: RaggedTokens) -> torch.Tensor:
        fed.append((self.shapes, len(tokens.rows) * tokens.counts[0]))
        clock[0] += 1.5 if self.shapes is exact else 1.0
        return forward(self, tokens)

    monkeypatch.setattr(RowsExecutor, "forward", slow)
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: clock[0])
    (cost,) = costs(bound, exact, ((3, 2),))
    assert (cost.fast_ms, cost.exact_ms) == (1000, 1500)
    assert cost.percent == pytest.approx(50)
    rounds = [shapes for shapes, tokens in fed if tokens == 6][2:]
    assert len(rounds) == 2 * cost.repeats
    assert sum(shapes == FAST for shapes in rounds) == cost.repeats
    assert any(one is not two for one, two in zip(rounds, rounds[1:], strict=False))


def test_a_short_context_is_filled_as_far_as_it_goes(cache: Path, quick: None) -> None:
    bound = BoundModel(tiny_model(max_position_embeddings=40))
    finding = examine(bound)
    assert finding.promised
    assert {cost.context for cost in finding.costs} == {35}
    assert calibrate(bound).shapes is not None
