"""The curriculum: admits groups while the lag bound allows, and keeps the ledger of what became of each.

Before a turn is published, the intention to publish it is saved; after a crash every intention is published again under
the same id. So a group is dispatched exactly once and the ledger's law holds through any number of restarts.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from typing import Any, cast

from actors.curriculum.admission import admissible
from actors.curriculum.config import CurriculumConfig
from actors.curriculum.ledger import Dispatch, Ledger
from actors.curriculum.sampler import UniformSampler
from messages import (
    DeadLetter,
    DeadReason,
    Outcome,
    OutcomeStatus,
    Sampling,
    Snapshot,
    Step,
    Task,
    Topic,
    Turn,
    WeightManifest,
    derive,
)
from messages.topics import DEAD, OUTCOMES, SNAPSHOTS, STEPS, TASKS, TURNS, WEIGHTS
from ops import semconv
from ops.telemetry import Attributes
from runtime.actor import Actor, ActorContext, Out, follows
from runtime.parcel import Received

MAX_ROUND = 64
"""Groups dispatched between two looks at the ledger."""


class Curriculum(Actor):
    """See the module."""

    kind = "curriculum"
    singleton = True

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self.config = cast(CurriculumConfig, context.run.curriculum)
        weights = {name: domain.weight for name, domain in context.run.domains.items()}
        self.sampler = UniformSampler(weights, context.run.run.seed)
        self.ledger = Ledger(prefix=secrets.token_hex(4))
        self.version = -1
        self.epoch = -1
        self._seen = {STEPS.name: 0, OUTCOMES.name: 0, DEAD.name: 0}
        self._strangers: set[str] = set()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Take up the saved state, index the tasks, and begin to dispatch."""
        saved = await self.bus.last(SNAPSHOTS, self.kind)
        sampler_state: dict[str, Any] = {}
        if saved is not None:
            state = json.loads(saved.record.state)
            self.ledger = Ledger.from_json(state["ledger"])
            self.epoch, self.version = state["epoch"], state["version"]
            self._seen = state["seen"]
            sampler_state = state["sampler"]
        await self._index_tasks(sampler_state)
        missed = [
            (received, take)
            for topic, take in self._ledger_topics()
            for received in await self.bus.read(topic, self._seen[topic.name] + 1)
        ]
        for received, take in sorted(missed, key=lambda pair: pair[0].time_s):
            take(received)  # in the order in which it happened: a dead letter before its replay before its end
        for group_id in sorted(self.ledger.intents):
            await self._publish_turn(self.ledger.open[group_id])
        for topic, take in self._ledger_topics():
            self.spawn(self._follow_ledger(topic, take), topic.name)
        self.spawn(self._dispatch(), "dispatch")
        self.log.info("ledger", known_tasks=self.sampler.n_tasks, **self.ledger.figures())

    async def _index_tasks(self, sampler_state: dict[str, Any]) -> None:
        last = 0
        for received in await self.bus.read(TASKS, "all", "train", ">"):
            self._learn_of(received)
            last = received.seq
        self.sampler.restore(sampler_state)
        self.spawn(self._follow_tasks(last + 1), "tasks")

    async def _follow_tasks(self, seq: int) -> None:
        async for received in self.bus.follow(TASKS, seq, "train", ">"):
            self._learn_of(received)
            self._changed.set()

    def _learn_of(self, received: Received) -> None:
        task: Task = received.record
        if not self.sampler.add(task.domain, received.seq) and task.domain not in self._strangers:
            self._strangers.add(task.domain)
            self.log.warning("tasks of a domain that the run file does not have", domain=task.domain)

    # --- what became of the groups ----------------------------------------------------------------------------------

    def _ledger_topics(self) -> list[tuple[Topic, Callable[[Received], None]]]:
        return [(STEPS, self._take_step), (OUTCOMES, self._take_outcome), (DEAD, self._take_dead)]

    async def _follow_ledger(self, topic: Topic, take: Callable[[Received], None]) -> None:
        async for received in self.bus.follow(topic, self._seen[topic.name] + 1):
            take(received)
            self._changed.set()

    def _take_outcome(self, received: Received) -> None:
        outcome: Outcome = received.record
        self._seen[OUTCOMES.name] = received.seq
        if self.ledger.apply(outcome):
            labels = {semconv.RL_DOMAIN: outcome.domain, semconv.RL_STATUS: outcome.status.value}
            if outcome.reason is not None:
                labels[semconv.RL_REASON] = outcome.reason.value
            self.context.telemetry.meters.groups_closed.add(1, labels)
            if outcome.status is OutcomeStatus.REPLAYED:
                entry = self.ledger.open[outcome.group_id]
                self.sampler.readmit(entry.domain, entry.task_seq)

    def _take_dead(self, received: Received) -> None:
        """A message was given up. A task whose turn can not be handled is drawn again only once it is replayed."""
        letter: DeadLetter = received.record
        self._seen[DEAD.name] = received.seq
        groups = (letter.group_id or "").split(",")
        self.ledger.died(groups)
        if letter.topic == TURNS.name and letter.reason is DeadReason.REJECTED:
            for entry in (self.ledger.dead[group] for group in groups if group in self.ledger.dead):
                self.sampler.refuse(entry.domain, entry.task_seq)
                self.log.warning("task set aside", task_seq=entry.task_seq, domain=entry.domain, error=letter.error)

    def _take_step(self, received: Received) -> None:
        """A batch has been trained or refused: its groups leave the pipeline, also while their outcomes wait."""
        step: Step = received.record
        self._seen[STEPS.name] = received.seq
        self._saw_epoch(step.epoch)
        if step.epoch == self.epoch:
            self.ledger.consumed((*step.group_ids, *step.refused_ids))
            self.version = step.version

    @follows(WEIGHTS, start="last")
    async def on_weights(self, received: Received) -> None:
        """A version is out; the first of an epoch is where a learner starts from."""
        manifest: WeightManifest = received.record
        if self._saw_epoch(manifest.epoch):
            self.version = manifest.version
            self._changed.set()

    def _saw_epoch(self, epoch: int) -> bool:
        """Take note of an epoch; a new one means that the learner came back from a checkpoint."""
        if epoch <= self.epoch:
            return False
        self.epoch = epoch
        self.ledger.rolled_back()
        return True

    # --- dispatching ------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Groups that may be dispatched now."""
        run = self.context.run
        if self.version < 0:
            return 0
        pipeline = self.ledger.pipeline
        allowed = admissible(
            max_concurrent=self.config.max_open_groups,
            groups_per_batch=run.training.groups_per_batch,
            max_lag=run.training.max_lag,
            version=self.version,
            running=pipeline,
            accepted=self.version * run.training.groups_per_batch,
        )
        if run.run.max_steps:
            wanted = (run.run.max_steps - self.version) * run.training.groups_per_batch - pipeline
            allowed = min(allowed, max(0, wanted))
        return min(allowed, MAX_ROUND)

    async def _dispatch(self) -> None:
        while True:
            self._changed.clear()
            await self.unpaused.wait()
            room = self.room()
            entries = [entry for _ in range(room) if (entry := self._draw()) is not None]
            if not entries:
                await self._changed.wait()
                continue
            await self._save()
            await asyncio.gather(*(self._publish_turn(entry) for entry in entries))
            self.ledger.published(entry.group_id for entry in entries)

    def _draw(self) -> Dispatch | None:
        drawn = self.sampler.draw()
        if drawn is None:
            return None
        domain, seq = drawn
        self.context.telemetry.meters.groups_dispatched.add(1, {semconv.RL_DOMAIN: domain})
        return self.ledger.dispatch(seq, domain, self.context.run.training.group_size, self.epoch, self.version)

    async def _publish_turn(self, entry: Dispatch) -> None:
        received = await self.bus.get(TASKS, entry.task_seq)
        if received is None:
            self.log.error("task is gone", task_seq=entry.task_seq, group=entry.group_id)
            self.ledger.died([entry.group_id])
            return
        turn = self._turn(received.record, entry)
        context = self.context.telemetry.extract(dict(received.headers))
        attributes: Attributes = {
            semconv.RL_TASK_ID: turn.task_id,
            semconv.RL_GROUP_ID: turn.group_id,
            semconv.RL_POLICY_VERSION: entry.version,
        }
        with self.context.telemetry.span("dispatch", context=context, attributes=attributes):
            await self.send(Out(TURNS, [turn], (turn.domain,), turn.group_id), derive("turn", turn.group_id))

    def _turn(self, task: Task, entry: Dispatch) -> Turn:
        run = self.context.run
        limits = [run.sampling.max_tokens, task.max_tokens, run.domains[task.domain].max_tokens]
        return Turn(
            id=f"{entry.group_id}.0",
            group_id=entry.group_id,
            task_id=task.id,
            task_seq=entry.task_seq,
            domain=task.domain,
            level=task.level,
            messages=task.messages,
            n=entry.n,
            sampling=Sampling(
                max_tokens=min(limit for limit in limits if limit is not None),
                temperature=run.sampling.temperature,
            ),
            deadline_s=run.sampling.deadline_s,
            admitted_epoch=entry.epoch,
            admitted_version=entry.version,
        )

    async def drain(self) -> None:
        """Save where everything stands."""
        await self._save()

    async def _save(self) -> None:
        state = {
            "ledger": self.ledger.to_json(),
            "sampler": self.sampler.to_json(),
            "epoch": self.epoch,
            "version": self.version,
            "seen": self._seen,
        }
        snapshot = Snapshot(kind=self.kind, saved_s=self.clock.now(), state=json.dumps(state))
        await self.bus.publish(SNAPSHOTS, [snapshot], self.kind, deadline_s=None)

    def gauges(self) -> dict[str, float]:
        """The ledger."""
        return {
            **self.ledger.figures(),
            "version": self.version,
            "epoch": self.epoch,
            "tasks": self.sampler.n_tasks,
            "pipeline_groups": self.ledger.pipeline,
        }
