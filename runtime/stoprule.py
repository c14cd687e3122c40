"""When a run is done. Pure: it is told the facts and the time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runtime.config import RunConfig
from runtime.facts import Facts


class Phase(StrEnum):
    """Where a run is on its way to the end."""

    TRAINING = "training"
    EVALUATING = "evaluating"
    """The last step is done; only the held-out scores of its weights are missing."""
    DONE = "done"


@dataclass
class StopRule:
    """Done at ``max_steps`` with the last evaluation in, or when a time limit has passed.

    Attributes:
        because: why the run is done, in words; "" before.
    """

    config: RunConfig
    because: str = ""
    _trained_at_s: float | None = None

    def phase(self, facts: Facts, elapsed_s: float) -> Phase:
        """Where the run is; ``elapsed_s`` counts from the launcher's start."""
        run = self.config.run
        if run.time_limit_s and elapsed_s >= run.time_limit_s:
            return self._done(f"the time limit of {run.time_limit_s:g} s has passed")
        if not run.max_steps or facts.version < run.max_steps:
            return Phase.TRAINING
        if self._trained_at_s is None:
            self._trained_at_s = elapsed_s
        if not self.config.evaluator.count:
            return self._done(f"weight version {facts.version} is reached")
        if self._evaluated(facts):
            return self._done(f"weight version {facts.version} is reached and evaluated")
        if elapsed_s - self._trained_at_s >= run.final_evaluation_s:
            return self._done(
                f"weight version {facts.version} is reached; its evaluation did not come within "
                f"{run.final_evaluation_s:g} s"
            )
        return Phase.EVALUATING

    def _evaluated(self, facts: Facts) -> bool:
        """Every domain that has held-out tasks, as far as is known, has a full evaluation of the last version."""
        wanted = self.config.run.max_steps
        held_out = {name for name, domain in facts.domains.items() if domain.evaluations}
        held_out |= {
            name
            for name, domain in self.config.domains.items()
            if domain.eval_files or (domain.source is not None and domain.source.n_eval)
        }
        return all(
            any(done.full and done.version >= wanted for done in facts.domain(name).evaluations) for name in held_out
        )

    def _done(self, because: str) -> Phase:
        self.because = self.because or because
        return Phase.DONE
