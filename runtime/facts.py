"""What is known of a run, gathered from the records that its actors publish. Pure: no bus, no clock, no file.

Everything counted here survives restarts of the actors: a heartbeat's counters grow over one life of a process, and the
lives of an instance are added up. A record that comes twice counts once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from messages import (
    ActorState,
    Alert,
    DeadLetter,
    Evaluation,
    Heartbeat,
    Outcome,
    OutcomeStatus,
    Record,
    Step,
)

RECENT_GROUPS = 128
SILENT_S = 5.0
CUMULATIVE_GAUGES = ("bus_s", "published")
"""Gauges of a heartbeat that grow over a life like its counters."""


@dataclass
class ActorFacts:
    """One instance over all its lives."""

    beat: Heartbeat
    earlier: Counter[str] = field(default_factory=Counter)
    lives: int = 1

    def on_heartbeat(self, beat: Heartbeat) -> None:
        """Take a newer beat; one of another process closes the earlier life."""
        if beat.sent_s < self.beat.sent_s:
            return
        if (beat.pid, beat.started_s) != (self.beat.pid, self.beat.started_s):
            self.earlier.update(_counted(self.beat))
            self.lives += 1
        self.beat = beat

    def total(self, name: str) -> float:
        """A counter added up over all lives."""
        return self.earlier[name] + _counted(self.beat).get(name, 0.0)

    def gauge(self, name: str) -> float | None:
        """A gauge as of the last beat."""
        return self.beat.gauges.get(name)

    def state(self, now_s: float) -> str:
        """Its state; "silent" when it should beat and does not. ``now_s`` is Unix time."""
        ended = self.beat.state is ActorState.STOPPED
        return "silent" if not ended and now_s - self.beat.sent_s > SILENT_S else self.beat.state.value


@dataclass
class DomainFacts:
    """One domain: what became of its groups and how it scores on held-out tasks."""

    trained: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dead: int = 0
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_GROUPS))
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def trained_share(self) -> float | None:
        """Trained samples of those that ended, in [0, 1]; None before the first."""
        ended = self.trained + self.dropped.total() + self.dead
        return self.trained / ended if ended else None

    @property
    def reward(self) -> float | None:
        """Mean reward of the groups that ended last, trained or not."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    def before(self) -> Evaluation | None:
        """The first evaluation, a full one if there is any."""
        return min(self._preferred(), key=_when, default=None)

    def after(self) -> Evaluation | None:
        """The newest evaluation, a full one if there is any."""
        return max(self._preferred(), key=_when, default=None)

    def newest(self) -> Evaluation | None:
        """The newest evaluation, full or not."""
        return max(self.evaluations, key=_when, default=None)

    def _preferred(self) -> list[Evaluation]:
        full = [evaluation for evaluation in self.evaluations if evaluation.full]
        return full or self.evaluations


@dataclass
class LagFacts:
    """Lag of what was trained, in weight versions, weighted by samples."""

    samples: int = 0
    total: float = 0.0
    most: int = 0

    @property
    def mean(self) -> float:
        """Mean lag of a trained sample."""
        return self.total / self.samples if self.samples else 0.0


@dataclass(frozen=True)
class QueueFacts:
    """How full a stream is."""

    messages: int
    bytes: int


@dataclass
class Facts:
    """Everything that the board, the summary and the stop rule ask of a run."""

    actors: dict[str, ActorFacts] = field(default_factory=dict)
    domains: dict[str, DomainFacts] = field(default_factory=dict)
    queues: dict[str, QueueFacts] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    n_alerts: int = 0
    n_dead_letters: int = 0
    last_dead: DeadLetter | None = None
    last_step: Step | None = None
    n_steps: int = 0
    n_batches: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    lag: LagFacts = field(default_factory=LagFacts)
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    _batches: set[tuple[int, str]] = field(default_factory=set)
    _letters: set[str] = field(default_factory=set)

    def domain(self, name: str) -> DomainFacts:
        """The facts of a domain, made when new."""
        return self.domains.setdefault(name, DomainFacts())

    def on(self, record: Record) -> bool:
        """Take a record of any kind that is counted here; False when it was known already or is of no interest."""
        match record:
            case Heartbeat():
                return self._on_heartbeat(record)
            case Step():
                return self._on_step(record)
            case Outcome():
                return self._on_outcome(record)
            case Evaluation():
                return self._on_evaluation(record)
            case DeadLetter():
                return self._on_dead(record)
            case Alert():
                self.alerts = [*self.alerts[-19:], record]
                self.n_alerts += 1
                return True
        return False

    # --- what is asked ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The weight version that the newest step led to."""
        return self.last_step.version if self.last_step else 0

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The outcome of each group that ended, by group id."""
        return self._outcomes

    def of_kind(self, kind: str) -> list[ActorFacts]:
        """The instances of a kind."""
        return [actor for _, actor in sorted(self.actors.items()) if actor.beat.kind == kind]

    def total(self, kind: str, counter: str) -> float:
        """A counter added up over the instances of a kind and all their lives."""
        return sum(actor.total(counter) for actor in self.of_kind(kind))

    def waiting_share(self, kind: str) -> float | None:
        """Share of their time in which the instances of a kind waited for work; None when they have not said."""
        waiting, busy = self.total(kind, "waiting_s"), self.total(kind, "busy_s")
        return waiting / (waiting + busy) if waiting + busy > 0 else None

    def tokens_per_s(self, kind: str) -> float | None:
        """Tokens per second of a kind's life, waiting included, over its instances; None when it has not said."""
        total = 0.0
        for actor in self.of_kind(kind):
            seconds = actor.total("waiting_s") + actor.total("busy_s")
            total += actor.total("tokens") / seconds if seconds > 0 else 0.0
        return total or None

    # --- records ----------------------------------------------------------------------------------------------------

    def _on_heartbeat(self, beat: Heartbeat) -> bool:
        known = self.actors.get(beat.instance)
        if known is None:
            self.actors[beat.instance] = ActorFacts(beat)
        else:
            known.on_heartbeat(beat)
        return True

    def _on_step(self, step: Step) -> bool:
        key = (step.epoch, step.batch_id)
        if key in self._batches:
            return False
        self._batches.add(key)
        self.n_batches += 1
        if self.last_step is None or (step.epoch, step.version) >= (self.last_step.epoch, self.last_step.version):
            self.last_step = step
        if not step.stepped:
            self.skipped[step.reason or "unknown"] += 1
            return True
        self.n_steps += 1
        self.lag.samples += step.n_samples
        self.lag.total += step.lag_mean * step.n_samples
        self.lag.most = max(self.lag.most, step.lag_max)
        return True

    def _on_outcome(self, outcome: Outcome) -> bool:
        known = self._outcomes.get(outcome.group_id)
        if not outcome.status.changes(known.status if known is not None else None):
            return False
        if known is not None:
            self._count(known, -1)
        self._outcomes[outcome.group_id] = outcome
        self._count(outcome, 1)
        if outcome.reward_mean is not None and outcome.status is not OutcomeStatus.REPLAYED:
            self.domain(outcome.domain).rewards.append(outcome.reward_mean)
        return True

    def _count(self, outcome: Outcome, sign: int) -> None:
        domain, n = self.domain(outcome.domain), sign * outcome.n_samples
        match outcome.status:
            case OutcomeStatus.TRAINED:
                domain.trained += n
            case OutcomeStatus.DROPPED:
                domain.dropped[str(outcome.reason)] += n
            case OutcomeStatus.DEAD:
                domain.dead += n
            case OutcomeStatus.REPLAYED:
                pass  # it is open again

    def _on_evaluation(self, evaluation: Evaluation) -> bool:
        domain = self.domain(evaluation.domain)
        key = (*_when(evaluation), evaluation.full)
        if any((*_when(known), known.full) == key for known in domain.evaluations):
            return False
        domain.evaluations.append(evaluation)
        return True

    def _on_dead(self, letter: DeadLetter) -> bool:
        if letter.id in self._letters:
            return False
        self._letters.add(letter.id)
        self.n_dead_letters += 1
        self.last_dead = letter
        return True


def _when(evaluation: Evaluation) -> tuple[int, int]:
    return evaluation.epoch, evaluation.version


def _counted(beat: Heartbeat) -> dict[str, float]:
    return {**beat.counters, **{name: beat.gauges[name] for name in CUMULATIVE_GAUGES if name in beat.gauges}}
