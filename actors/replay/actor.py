"""The replay actor: holds experiences, unacknowledged, until they are in a stored batch or dropped with a reason.

A crash of this process loses nothing: what it held is delivered again. What it had put into a batch just before is
known from the batches stream and the steps, and is not put into another; the learner checks once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from actors.replay.buffer import Buffer, Group
from actors.replay.config import ReplayConfig
from messages import (
    Batch,
    DeadLetter,
    DropReason,
    Experience,
    MessageError,
    Outcome,
    OutcomeStatus,
    Step,
    Topic,
    WeightManifest,
    derive,
)
from messages.topics import BATCHES, DEAD, EXPERIENCES, OUTCOMES, STEPS, WEIGHTS
from ops import semconv
from runtime.actor import Actor, ActorContext, Delivery, Out, follows, works
from runtime.errors import BlobGone, Rejected
from runtime.parcel import Received

KNOWN_GROUPS = 65_536


class Replay(Actor):
    """See the module."""

    kind = "replay"
    singleton = True

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self.config = cast(ReplayConfig, context.run.replay)
        self.training = context.run.training
        self.buffer = Buffer(
            max_groups=self.config.max_groups,
            groups_per_batch=self.training.groups_per_batch,
            max_lag=self.training.max_lag,
        )
        self.version = -1
        self.epoch = -1
        self.outstanding: dict[int, str] = {}
        """Batches that are stored and not yet reported by a step: number to id."""
        self._reported: set[int] = set()
        self._number = 0
        self._fates: dict[str, asyncio.Future[DropReason | None]] = {}
        self._batched: dict[str, None] = {}
        self._changed = asyncio.Event()
        self._books = asyncio.Lock()
        """Held while a batch is stored or the stored ones are counted: one that is half stored would be forgotten."""

    async def start(self) -> None:
        """Find out which batches are under way, then begin to compose."""
        seen = 0
        for received in await self.bus.read(STEPS):
            seen = received.seq
            step: Step = received.record
            self._number = max(self._number, step.batch_number)
            self._remember((*step.group_ids, *step.refused_ids))
            if self._enters_epoch(step.epoch, step.version) or step.epoch == self.epoch:
                self._reported.add(step.batch_number)
                self.version = step.version
        newest = await self.bus.last(WEIGHTS)
        if newest is not None:
            self._enters_epoch(newest.record.epoch, newest.record.version)
        await self._find_outstanding()
        self.spawn(self._follow_steps(seen + 1), "steps")
        self.spawn(self._compose(), "compose")

    def _enters_epoch(self, epoch: int, version: int) -> bool:
        """Take note of an epoch; a new one means that the learner came back and will report its batches anew."""
        if epoch <= self.epoch:
            return False
        self.epoch, self.version = epoch, version
        self._reported.clear()
        return True

    async def _find_outstanding(self) -> None:
        """Every stored batch that no step of this epoch has reported; each will be."""
        async with self._books:
            await self._count_batches()

    async def _count_batches(self) -> None:
        state = await self.bus.stream_state(BATCHES)
        found: dict[int, str] = {}
        if state.messages:
            for seq in range(state.first_seq, state.last_seq + 1):
                try:
                    received = await self.bus.get(BATCHES, seq)
                except (MessageError, BlobGone) as error:  # the learner makes it a dead letter
                    self.log.warning("unreadable batch", seq=seq, error=str(error))
                    continue
                if received is None:
                    continue
                batch: Batch = received.record
                self._number = max(self._number, batch.number)
                self._remember([experience.rollout.group_id for experience in batch.experiences])
                if batch.number not in self._reported:
                    found[batch.number] = batch.id
        self.outstanding = {number: batch_id for number, batch_id in found.items() if number not in self._reported}

    def _remember(self, group_ids: Sequence[str]) -> None:
        self._batched.update(dict.fromkeys(group_ids))
        while len(self._batched) > KNOWN_GROUPS:
            del self._batched[next(iter(self._batched))]

    def concurrency(self, topic: Topic) -> int:
        """Every group that waits is an input being handled; the buffer itself is the bound."""
        return self.config.max_groups

    @works(EXPERIENCES)
    async def on_experiences(self, delivery: Delivery[Experience]) -> Sequence[Out]:
        """Hold a group until it is in a batch, or until it must be dropped."""
        first = delivery.records[0].rollout
        if {e.rollout.group_id for e in delivery.records} != {first.group_id} or len(delivery.records) != first.n:
            raise Rejected(f"parcel of {len(delivery.records)} is not the whole group {first.group_id} of {first.n}")
        group = Group(first.group_id, tuple(delivery.records), delivery.traceparent)
        if group.group_id in self._batched:
            self.counters["duplicates"] += 1
            return []
        fate = self._fates.get(group.group_id)
        if fate is None:
            fate = self._hold(group)
        else:  # delivered again while it waits: what is acknowledged now would live in this process alone
            self.counters["duplicates"] += 1
        with self.context.telemetry.span("replay wait"):
            reason = await asyncio.shield(fate)
        return [] if reason is None else [self._dropped(group, reason)]

    def _hold(self, group: Group) -> asyncio.Future[DropReason | None]:
        fate: asyncio.Future[DropReason | None] = asyncio.get_running_loop().create_future()
        fate.add_done_callback(lambda _: self._fates.pop(group.group_id, None))
        self._fates[group.group_id] = fate
        evicted = self.buffer.add(group)
        if evicted is not None:
            self._decide(evicted.group_id, DropReason.EVICTED)
        self._changed.set()
        return fate

    def _decide(self, group_id: str, reason: DropReason | None) -> None:
        fate = self._fates.get(group_id)
        if fate is not None and not fate.done():
            fate.set_result(reason)

    # --- composing --------------------------------------------------------------------------------------------------

    @property
    def target_version(self) -> int:
        """The version that the next batch will be trained on: today's, and one more per batch still under way."""
        return self.version + len(self.outstanding)

    async def _compose(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.unpaused.wait()
            for group in self.buffer.sweep(self.target_version):
                self._decide(group.group_id, DropReason.STALE)
            async with self._books:
                while self.version >= 0 and len(self.outstanding) < self.training.batches_ahead:
                    chosen = self.buffer.compose(self.target_version)
                    if chosen is None:
                        break
                    await self._publish(chosen)

    async def _publish(self, chosen: Sequence[Group]) -> None:
        number = self._number + 1
        batch = Batch(
            id=derive("batch", number, *(group.group_id for group in chosen)),
            number=number,
            version=self.target_version,
            experiences=tuple(experience for group in chosen for experience in group.experiences),
            traceparents=tuple(group.traceparent for group in chosen if group.traceparent),
        )
        group_ids = ",".join(group.group_id for group in chosen)
        self._number = number
        self.outstanding[number] = batch.id  # before it is stored: its step may be reported before we hear of that
        with self.context.telemetry.span("compose batch", root=True):
            await self.send(Out(BATCHES, [batch], (str(number),), group_ids), batch.id)
        self._remember([group.group_id for group in chosen])
        self.counters["batches"] += 1
        for group in chosen:
            self._decide(group.group_id, None)

    def _dropped(self, group: Group, reason: DropReason) -> Out:
        first = group.experiences[0].rollout
        self.counters[f"dropped_{reason.value}"] += len(group.experiences)
        outcome = Outcome(
            group_id=group.group_id,
            task_id=first.task_id,
            domain=first.domain,
            level=first.level,
            status=OutcomeStatus.DROPPED,
            reason=reason,
            n_samples=len(group.experiences),
            reward_mean=sum(e.reward for e in group.experiences) / len(group.experiences),
            pass_rate_mean=sum(e.pass_rate for e in group.experiences) / len(group.experiences),
            epoch=max(0, self.epoch),
            version=max(0, self.version),
            lag=group.lag(self.target_version),
            actor=self.kind,
        )
        key = (outcome.status.value, outcome.domain)
        return Out(OUTCOMES, [outcome], key, group.group_id, derive("outcome", reason.value, group.group_id))

    async def drain(self) -> None:
        """Give back what waits: it stays on the bus."""
        for fate in list(self._fates.values()):
            fate.cancel()

    # --- progress ---------------------------------------------------------------------------------------------------

    async def _follow_steps(self, seq: int) -> None:
        """From the first step that was not read at the start: one that is missed would be waited for for ever."""
        async for received in self.bus.follow(STEPS, seq):
            await self._on_step(received.record)

    async def _on_step(self, step: Step) -> None:
        """A batch has been reported."""
        if step.epoch < self.epoch:
            return
        if self._enters_epoch(step.epoch, step.version):
            await self._find_outstanding()
        self.version = step.version
        self._reported.add(step.batch_number)
        self.outstanding.pop(step.batch_number, None)
        self._changed.set()

    @follows(DEAD, start="all")
    async def on_dead(self, received: Received) -> None:
        """A batch that became a dead letter will not be reported by a step."""
        letter: DeadLetter = received.record
        number = letter.subject.rsplit(".", 1)[-1]
        if letter.topic == BATCHES.name and number.isdecimal():
            self.outstanding.pop(int(number), None)
            self._changed.set()

    @follows(WEIGHTS, start="last")
    async def on_weights(self, received: Received) -> None:
        """The first version of an epoch is where a learner starts; batches that it did not keep come to it again."""
        manifest: WeightManifest = received.record
        if self._enters_epoch(manifest.epoch, manifest.version):
            await self._find_outstanding()
            self._changed.set()

    def gauges(self) -> dict[str, float]:
        """How much waits."""
        groups = self.buffer.groups()
        by_domain: dict[str, int] = {}
        for group in groups:
            domain = group.experiences[0].rollout.domain
            by_domain[domain] = by_domain.get(domain, 0) + len(group.experiences)
        for domain, n in by_domain.items():
            self.context.telemetry.meters.buffered.set(n, {semconv.RL_DOMAIN: domain})
        return {
            "groups": len(groups),
            "samples": sum(by_domain.values()),
            "version": self.version,
            "epoch": self.epoch,
            "outstanding": len(self.outstanding),
        }
