"""Where the evidence is gathered: runs and controls, each made once and only when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from draftproof.forensics.compare import first_divergence, overshoot
from draftproof.forensics.forks import Fork, Outcome, cannot
from draftproof.forensics.noise import (
    DOUBTFUL,
    NOBODY_DEFENDS,
    STEPS,
    Noise,
    Sample,
    changes,
    grid_of,
    measure,
    step_of,
)
from draftproof.forensics.scoring import score_in_blocks
from draftproof.forensics.subjects.base import (
    OWN,
    Ability,
    Answer,
    Inquiry,
    Run,
    Setup,
    Subject,
    Task,
    Top,
)

FLOAT32 = "float32"
LEAST = 1e-3  # of a change of scores: logarithms of probabilities in float32 are right to 1e-5


@dataclass(kw_only=True)
class Lab:
    """A reference, a candidate, and what both were asked.

    The two runs as asked are `expected` and `found`. Controls that look for logic run in float32
    where both sides can (`clean`): rounding vanishes there and logic stays.
    """

    reference: Subject
    candidate: Subject
    inquiry: Inquiry
    max_gap: float = NOBODY_DEFENDS
    controls: bool = True
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    _noise: dict[str | None, Noise] = field(default_factory=dict)
    _extra: dict[tuple[str, str | None], Run] = field(default_factory=dict)

    @cached_property
    def expected(self) -> Run:
        """The reference as asked."""
        return self.reference.run(self.inquiry)

    @cached_property
    def found(self) -> Run:
        """The candidate as asked."""
        return self.candidate.run(self.inquiry)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the sides themselves want said beside any verdict."""
        sides = (("reference", self.reference), ("candidate", self.candidate))
        told = [(name, side.settings().get("note")) for name, side in sides]
        return tuple(f"{name}: {note}" for name, note in told if note)

    @property
    def clean(self) -> str | None:
        """The dtype of the controls; None: whatever the subjects run in."""
        both = self.reference.abilities & self.candidate.abilities
        return FLOAT32 if self.controls and Ability.FLOAT32 in both else None

    @cached_property
    def dtype(self) -> str | None:
        """The reference's dtype, None when unknown."""
        found = self.reference.settings().get("dtype")
        return None if found is None else str(found)

    @cached_property
    def _casts(self) -> bool:
        """Whether the clean arithmetic is another one than that of the runs as asked."""
        names = {side.settings().get("dtype") for side in (self.reference, self.candidate)}
        return self.clean is not None and names != {self.clean}

    @property
    def cast(self) -> str | None:
        """What controls put into their Setup to run in clean arithmetic."""
        return self.clean if self._casts else None

    @cached_property
    def clean_expected(self) -> Run:
        """The reference in clean arithmetic."""
        if not self._casts:
            return self.expected
        return self.reference.run(self.inquiry, Setup(dtype=self.clean))

    # -- forks -------------------------------------------------------------------------------------

    def forks(
        self, expected: Run, found: Run, dtype: str | None, tasks: Sequence[Task] | None = None
    ) -> tuple[Fork, ...]:
        """First divergences of answered rows, with their gaps."""
        tasks = self.inquiry.tasks if tasks is None else tasks
        rows = zip(tasks, expected.answers, found.answers, strict=True)
        found_forks = [self._fork(task, a, b, dtype) for task, a, b in rows]
        return tuple(fork for fork in found_forks if fork is not None)

    def _fork(self, task: Task, expected: Answer, found: Answer, dtype: str | None) -> Fork | None:
        divergence = first_divergence(task.index, expected.ids, found.ids)
        if expected.error or found.error or divergence is None:
            return None
        place = divergence.position
        fork = Fork(
            divergence=divergence,
            context=len(task.prompt) + place,
            overshoot=overshoot(expected.ids, found.ids),
        )
        if divergence.expected is None or divergence.found is None or place >= len(expected.tops):
            return fork
        top = expected.tops[place]
        if not top.ids:
            return fork
        gap, exact = top.gap(divergence.expected, divergence.found)
        own_grid = self.grid if dtype == self.dtype else None
        step = step_of(dtype, top.values[0]) if top.logits else own_grid
        near = exact and self.within_noise(gap, step, dtype)
        return replace(
            fork, gap=gap, bounded=not exact, steps=gap / step if step else None, near=near
        )

    def within_noise(self, gap: float, step: float | None, dtype: str | None) -> bool:
        """Whether rounding explains a gap: within two steps, or within twice the measured band.

        Twice, because at the fork both sides' roundings count.
        """
        if gap > self.max_gap:
            return False
        if step is not None and gap <= STEPS * step:
            return True
        return gap <= 2 * self.noise(dtype).band

    def beyond(self, change: float, top: Top) -> bool:
        """Whether scores that both sides give to the same place, in clean arithmetic, are further
        apart than two ways to compute them bring them: well beyond the band, and beyond what
        logarithms of probabilities lose on the way."""
        dtype = self.clean or self.dtype
        step = step_of(dtype, top.values[0]) if top.logits else self.grid
        return change > max(LEAST, DOUBTFUL * self.noise(dtype).band, 2 * STEPS * (step or 0.0))

    # -- noise -------------------------------------------------------------------------------------

    def noise(self, dtype: str | None) -> Noise:
        """Of the reference without speculation, in its own dtype or in clean arithmetic."""
        if dtype not in self._noise:
            self._noise[dtype] = Noise()  # no fork is near while the noise itself is measured
            if self.controls:
                self._noise[dtype] = measure(self._noise_samples(dtype))
        return self._noise[dtype]

    def _noise_samples(self, dtype: str | None) -> Iterable[Sample]:
        cast = self.cast if dtype == self.clean else None
        base = self.expected if cast is None else self.clean_expected
        batched, alone = self.batched(cast), self.rescored(cast)
        if batched is not None:
            values = changes(base, batched)
            yield Sample(source=f"plain, batch {self.rows}", values=values, alone=False)
        if alone is not None:
            shape = "a row at once" if self._scoring else f"blocks of {self.block}"
            values = changes(base, alone)
            yield Sample(source=f"no drafter, {shape}", values=values, alone=True)

    @property
    def rows(self) -> int:
        """Rows at a time where the reference is run in a batch."""
        return max(self.candidate.batch, 2)

    @property
    def block(self) -> int:
        """Tokens at a time where the reference's output is scored in blocks."""
        return (self.candidate.k or 4) + 1

    def batched(self, cast: str | None) -> Run | None:
        """The reference without speculation in a batch; `cast` as in Setup.dtype."""
        if Ability.BATCH not in self.reference.abilities:
            return None
        if ("batched", cast) not in self._extra:
            setup = Setup(batch=self.rows, k=self._zero, dtype=cast)
            self._extra["batched", cast] = self.reference.run(self.inquiry, setup)
        return self._extra["batched", cast]

    def rescored(self, cast: str | None) -> Run | None:
        """The reference's own output, scored in another shape without any drafter or neighbour:
        in blocks by a local model, a row at once by a server that can."""
        if ("rescored", cast) not in self._extra:
            base = self.expected if cast is None else self.clean_expected
            model = self.model(cast)
            if self._scoring:
                scoring: Any = self.reference
                self._extra["rescored", cast] = scoring.scores(self.inquiry, base, cast)
            elif model is not None:
                self._extra["rescored", cast] = self._blocks(model, base, self.block)
        return self._extra.get(("rescored", cast))

    @cached_property
    def grid(self) -> float | None:
        """Step of the reference's own scores, read off them where it names no dtype."""
        tops = [top for answer in self.expected.answers for top in answer.tops]
        return grid_of(top.values[0] - top.values[1] for top in tops if len(top.values) > 1)

    @property
    def _scoring(self) -> bool:
        return Ability.SCORES in self.reference.abilities

    @property
    def _zero(self) -> int | None:
        return 0 if Ability.K in self.reference.abilities else None

    def _blocks(self, model: Any, base: Run, block: int) -> Run:
        tasks = zip(self.inquiry.tasks, base.answers, strict=True)
        answers = [
            Answer(ids=a.ids, tops=score_in_blocks(model, t.prompt, a.ids, block))
            if a.ids and t.prompt
            else Answer(error="nothing to score")
            for t, a in tasks
        ]
        return Run(answers=tuple(answers))

    def model(self, dtype: str | None) -> Any | None:
        """A local target in a dtype, of the reference or else of the candidate."""
        for side in (self.reference, self.candidate):
            if side.model is not None:
                cast = getattr(side, "model_as", None)
                return side.model if dtype is None or cast is None else cast(dtype)[0]
        return None

    # -- runs of controls --------------------------------------------------------------------------

    def of_candidate(
        self, name: str, setup: Setup, needs: Ability, *, inquiry: Inquiry | None = None
    ) -> Outcome:
        """A control on the candidate; where it cannot, on a plain reference of the same kind."""
        if needs in self.candidate.abilities:
            return self.against_reference(name, self.candidate, setup, inquiry)
        if not self._stands_in(setup):
            return cannot(name, f"the candidate cannot be asked for another {needs.value}")
        found = self.against_reference(name, self.reference, replace(setup, k=None), inquiry)
        return replace(found, stand_in=True)

    def _stands_in(self, setup: Setup) -> bool:
        same = type(self.reference) is type(self.candidate)
        plain = setup.k == 0 and setup.script is None and not setup.serial
        return same and plain and self.reference.k in (0, None)

    def against_reference(
        self, name: str, side: Subject, setup: Setup, inquiry: Inquiry | None = None
    ) -> Outcome:
        """Run one side in clean arithmetic and compare it with the reference."""
        asked = self.inquiry if inquiry is None else inquiry
        if setup == OWN and not self._casts and side is self.candidate and inquiry is None:
            run = self.found
        else:
            run = side.run(asked, replace(setup, dtype=self.cast))
        return self.outcome(name, asked.tasks, self.reference_of(asked), run)

    def outcome(self, name: str, tasks: Sequence[Task], expected: Run, run: Run) -> Outcome:
        """A control's run beside what it should have been, in clean arithmetic."""
        return Outcome(
            name=name,
            rows=len(run.answers),
            errors=sum(answer.error is not None for answer in run.answers),
            forks=self.forks(expected, run, self.clean or self.dtype, tasks),
            run=run,
        )

    def reference_of(self, inquiry: Inquiry) -> Run:
        """The reference's answers to this inquiry, asked anew only where they are not known."""
        if inquiry is self.inquiry:
            return self.clean_expected
        known = {t.prompt: a for t, a in self._known()}
        same_rules = replace(inquiry, tasks=self.inquiry.tasks) == self.inquiry
        if same_rules and all(task.prompt in known for task in inquiry.tasks):
            return Run(answers=tuple(known[task.prompt] for task in inquiry.tasks))
        return self.reference.run(inquiry, Setup(dtype=self.cast))

    def _known(self) -> Iterable[tuple[Task, Answer]]:
        return zip(self.inquiry.tasks, self.clean_expected.answers, strict=True)
