"""Facts of an imagined run, for tests of what is shown and decided."""

from __future__ import annotations

from typing import Any

from messages import ActorState, Evaluation, Heartbeat, Outcome, Step
from messages.learning import DropReason, OutcomeStatus
from runtime.facts import Facts, QueueFacts

NOW_S = 1_700_000_000.0


def beat(instance: str, **changes: Any) -> Heartbeat:
    """A heartbeat of an instance such as ``generator-0``."""
    fields: dict[str, Any] = {
        "kind": instance.rsplit("-", 1)[0],
        "instance": instance,
        "host": "here",
        "pid": 1,
        "state": ActorState.RUNNING,
        "started_s": NOW_S - 60,
        "sent_s": NOW_S,
        "in_flight": 3,
        "loop_lag_s": 0.0,
        "rss_bytes": 300 << 20,
    }
    return Heartbeat(**{**fields, **changes})


def step(version: int, **changes: Any) -> Step:
    """A step that led to a version."""
    fields: dict[str, Any] = {
        "epoch": 1,
        "version": version,
        "batch_id": f"b{version}",
        "batch_number": version,
        "stepped": True,
        "n_samples": 512,
        "n_tokens": 9000,
        "lag_mean": 1.0,
        "lag_max": 2,
        "finished_s": NOW_S,
    }
    return Step(**{**fields, **changes})


def evaluation(domain: str, version: int, sampled: float, greedy: float, **changes: Any) -> Evaluation:
    """A full evaluation of a domain."""
    fields: dict[str, Any] = {
        "epoch": 1,
        "n_tasks": 200,
        "samples_per_task": 8,
        "full": True,
        "seconds": 3.0,
        "finished_s": NOW_S,
    }
    return Evaluation(
        domain=domain, version=version, sampled_accuracy=sampled, greedy_accuracy=greedy, **{**fields, **changes}
    )


def outcome(group: str, domain: str, status: OutcomeStatus = OutcomeStatus.TRAINED, **changes: Any) -> Outcome:
    """The end of a group of 16."""
    reason = DropReason.NO_SIGNAL if status is OutcomeStatus.DROPPED else None
    fields: dict[str, Any] = {"task_id": "t", "n_samples": 16, "reward_mean": 0.5, "actor": "learner", "reason": reason}
    return Outcome(group_id=group, domain=domain, status=status, **{**fields, **changes})


def busy_run() -> Facts:
    """A run in its middle, with every actor, two domains and a ledger that closes."""
    facts = Facts()
    rates = {"version": 40, "tokens_per_s": 12_345.0}
    engine = {"tokens": 1e6, "rollouts": 9000, "busy_s": 90, "waiting_s": 10}
    facts.on(beat("generator-0", gauges=rates, counters=engine))
    facts.on(beat("generator-1", gauges=rates, counters=engine, sent_s=NOW_S - 30))
    facts.on(beat("learner-0", gauges=rates, counters={**engine, "busy_s": 60, "waiting_s": 40}))
    books = {"dispatched": 2048, "trained": 1024, "dropped": 512, "dropped_no_signal": 512, "dead": 16, "open": 496}
    facts.on(beat("curriculum-0", gauges=books))
    for kind in ("verifier", "reward", "replay", "evaluator"):
        facts.on(beat(f"{kind}-0", counters={"handled": 1234}))
    for version in range(1, 41):
        facts.on(step(version))
    for domain in ("arithmetic", "gym-letter-counting-and-more"):
        facts.on(evaluation(domain, 0, 0.31, 0.52))
        facts.on(evaluation(domain, 40, 0.62, 0.66, full=False))
        facts.on(outcome(f"{domain}-1", domain))
        facts.on(outcome(f"{domain}-2", domain, OutcomeStatus.DROPPED))
    for name in ("turns", "rollouts", "verdicts", "experiences", "batches"):
        facts.queues[name] = QueueFacts(12, 4096)
    return facts
