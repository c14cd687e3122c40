"""The learner: batches in, versions out. A batch is acknowledged only when a checkpoint holds what it taught.

The checkpoint stores the weights and the ids of the groups they were trained on in one atomic write. After a crash
the learner comes back under a new epoch, announces its weights first, and is given the unacknowledged batches again:
groups that its weights know are reported as trained, the others are trained, unless they are too old or sampled by
weights that no longer exist.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from actors.learner.checkpoint import CheckpointError, CheckpointStore
from actors.learner.config import LearnerConfig
from actors.learner.consumed import Consumed
from actors.learner.figures import by_domain, end_of, metrics
from actors.learner.sample import SampleError, TrainSample, train_sample
from actors.learner.trainer import SkipReason, StepResult, Trainer
from actors.policy.model import Policy, PolicyError, load_policy
from actors.policy.weight_bytes import to_chunks
from messages import (
    Batch,
    DropReason,
    Experience,
    Step,
    Topic,
    WeightManifest,
    derive,
)
from messages.topics import BATCHES, OUTCOMES, STEPS, WEIGHTS
from ops import semconv
from ops.telemetry import Attributes, links_to
from runtime import weights
from runtime.actor import Actor, ActorContext, Delivery, Out, works
from runtime.errors import Rejected, Retry, UserError

AGAIN_S = 10.0
"""Pause before something is written again that the disk had no room for."""

SKIPPED = {
    SkipReason.EMPTY: DropReason.EMPTY,
    SkipReason.NO_SIGNAL: DropReason.NO_SIGNAL,
    SkipReason.NON_FINITE: DropReason.NON_FINITE,
}

Groups = dict[str, list[Experience]]


@dataclass
class Sorted:
    """A batch's groups by what will become of them."""

    fresh: Groups
    refused: list[tuple[str, list[Experience], DropReason]]
    known: Groups


class Learner(Actor):
    """See the module."""

    kind = "learner"
    singleton = True

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self.config = cast(LearnerConfig, context.run.learner)
        self.max_lag = context.run.training.max_lag
        self.consumed = Consumed()
        self.epoch = 0
        self._turn = asyncio.Lock()
        self._waiting_since = self.clock.monotonic()
        self._saved = asyncio.Event()
        self._save_failed = asyncio.Event()
        self._lag_max = 0
        self._tokens_per_s = 0.0
        self._unsaved = 0
        self._unsaved_groups: set[str] = set()

    @property
    def version(self) -> int:
        """The weight version that the next batch will be trained on."""
        return self.trainer.version

    async def start(self) -> None:
        """Load the policy and the newest checkpoint, enter a new epoch, and announce its weights before all else."""
        run = self.context.run
        try:
            self.policy: Policy = await asyncio.to_thread(load_policy, run.policy.path, run.policy.device, "float32")
            self.trainer = self.make_trainer(self.policy)
            self.store = CheckpointStore(self.context.folder / "checkpoints", self.config.checkpoint.keep)
            await self._resume()
        except (PolicyError, CheckpointError) as error:
            raise UserError(str(error)) from error
        torch.set_num_threads(self.config.threads)
        self._broadcast_dtype = served_dtype(run.policy.dtype, self.policy.device)
        self.writer = weights.WeightWriter(weights.weights_folder(self.context.folder), keep=4)
        await self._broadcast(None)
        self.writer.clear_strangers()
        self.spawn(self.writer.serve_requests(self.bus, self._write_again), "serve-weights")
        for topic in (WEIGHTS, STEPS):
            self.spawn(self._until_fenced(topic), f"fence-{topic.name}")
        self.spawn(self._save_again(), "save-again")
        self._waiting_since = self.clock.monotonic()

    def make_trainer(self, policy: Policy) -> Trainer:
        """What takes the steps."""
        return Trainer(policy, self.config, self.context.run.run.seed)

    async def _resume(self) -> None:
        found = await asyncio.to_thread(self.store.load_latest, self.policy)
        if found is not None:
            self.trainer.restore(found.state)
            self.consumed = Consumed.from_json(found.extra["consumed"])
            self.epoch = int(found.extra["epoch"])
        for newest in (await self.bus.last(WEIGHTS), await self.bus.last(STEPS)):
            if newest is not None:
                self.epoch = max(self.epoch, newest.record.epoch)
        self.epoch += 1
        self.consumed.enter_epoch(self.epoch, self.version)
        self.log.info("epoch", epoch=self.epoch, version=self.version, from_checkpoint=found is not None)
        for torn in found.torn if found is not None else ():
            await self.alert("checkpoint-torn", "warning", f"passed over a damaged checkpoint: {torn}")

    def concurrency(self, topic: Topic) -> int:
        """Batches that await their checkpoint, and one to train."""
        return self.config.checkpoint.every_steps + 2

    @works(BATCHES, max_fetch_bytes=256 << 20)
    async def on_batch(self, delivery: Delivery[Batch]) -> Sequence[Out]:
        """Train a batch; return its groups' outcomes once a checkpoint makes them final."""
        batch = delivery.records[0]
        async with self._turn:
            await self._until_wanted(batch)
            waited_s = self.clock.monotonic() - self._waiting_since
            self.counters["waiting_s"] += waited_s
            outcomes, saved = await self._train(batch, waited_s)
            self._waiting_since = self.clock.monotonic()
        await saved.wait()
        return outcomes

    async def _until_wanted(self, batch: Batch) -> None:
        """After the run's last step nothing is trained any more; what comes still stays on the bus.

        Only a batch that the checkpoint knows is still taken: a crash came before its end could be told.
        """
        last = self.context.run.run.max_steps
        known = all(experience.rollout.group_id in self.consumed for experience in batch.experiences)
        if last and self.version >= last and not known:
            await self.draining.wait()
            raise asyncio.CancelledError

    async def _train(self, batch: Batch, waited_s: float) -> tuple[list[Out], asyncio.Event]:
        parts = self._sort(batch)
        outcomes = [self._outcome(group, reason=reason) for _, group, reason in parts.refused]
        outcomes += [self._outcome(group) for group in parts.known.values()]
        base = self.version
        samples = [train_sample(e) for group in parts.fresh.values() for e in group]
        attributes: Attributes = {semconv.RL_STEP: base + 1, semconv.RL_BATCH_ID: batch.id}
        links = links_to(batch.traceparents)
        began = self.clock.monotonic()
        with self.context.telemetry.span("learner.step", root=True, links=links, attributes=attributes) as span:
            result = await self._step(samples)
            busy_s = self.clock.monotonic() - began
            if result is not None and result.stepped:
                span.set_attribute(semconv.RL_POLICY_VERSION, self.version)
                self.consumed.add(parts.fresh)
                self._unsaved += 1
                self._unsaved_groups.update(parts.fresh)
                await self._report(batch, result, parts.fresh, base, busy_s, waited_s)
                await self._broadcast(batch.id)
                outcomes += [self._outcome(group, base=base) for group in parts.fresh.values()]
            else:
                reason = self._why_not(result)
                await self._report(batch, result, {}, base, busy_s, waited_s, reason=reason)
                if result is not None and result.skipped is not None:
                    outcomes += [self._outcome(g, reason=SKIPPED[result.skipped]) for g in parts.fresh.values()]
        final = self._saved if self._unsaved_groups & {*parts.fresh, *parts.known} else _SET
        self.counters["busy_s"] += self.clock.monotonic() - began
        if self._checkpoint_is_due():
            await self._checkpoint()
        return outcomes, final

    def _sort(self, batch: Batch) -> Sorted:
        groups: Groups = defaultdict(list)
        for experience in batch.experiences:
            groups[experience.rollout.group_id].append(experience)
        parts = Sorted({}, [], {})
        for group_id, group in groups.items():
            if group_id in self.consumed:
                self.counters["duplicates"] += 1
                parts.known[group_id] = group
                continue
            reason = self.consumed.refusal(group, self.version, self.max_lag)
            if reason is None:
                parts.fresh[group_id] = group
            else:
                self.counters[f"dropped_{reason.value}"] += len(group)
                parts.refused.append((group_id, group, reason))
        return parts

    async def _step(self, samples: Sequence[TrainSample]) -> StepResult | None:
        if not samples:
            return None
        try:
            return await asyncio.to_thread(self.trainer.step, samples)
        except SampleError as error:
            await self.alert("sample-refused", "critical", str(error))
            raise Rejected(str(error)) from error

    @staticmethod
    def _why_not(result: StepResult | None) -> str:
        if result is None:
            return "no group left to train"
        return result.skipped.value if result.skipped is not None else "no step"

    # --- telling ----------------------------------------------------------------------------------------------------

    async def _report(
        self,
        batch: Batch,
        result: StepResult | None,
        trained: Groups,
        base: int,
        busy_s: float,
        waited_s: float,
        reason: str = "",
    ) -> None:
        experiences = list(itertools.chain.from_iterable(trained.values()))
        lags = [base - experience.rollout.oldest_version for experience in experiences]
        of_batch = dict.fromkeys(experience.rollout.group_id for experience in batch.experiences)
        refused = [group_id for group_id in of_batch if group_id not in self.consumed]
        step = Step(
            epoch=self.epoch,
            version=self.version,
            batch_id=batch.id,
            batch_number=batch.number,
            stepped=bool(experiences),
            reason=reason,
            group_ids=tuple(trained),
            refused_ids=tuple(refused),
            n_samples=len(experiences),
            n_tokens=result.trained_tokens if result is not None and experiences else 0,
            lag_mean=sum(lags) / len(lags) if lags else 0.0,
            lag_max=max(lags, default=0),
            metrics=metrics(result),
            domains=by_domain(experiences),
            busy_s=busy_s,
            waiting_s=waited_s,
            finished_s=self.clock.now(),
        )
        self._observe(step, lags, experiences)
        await self.send(Out(STEPS, [step], (str(self.epoch),)), derive("step", self.epoch, batch.id))
        if result is not None and result.skipped is SkipReason.NON_FINITE:
            await self.alert(
                "non-finite-step", "critical", f"batch {batch.number}: loss or gradient not finite; no step"
            )

    def _observe(self, step: Step, lags: Sequence[int], experiences: Sequence[Experience]) -> None:
        meters = self.context.telemetry.meters
        meters.steps.add(
            1, {semconv.RL_STATUS: "stepped" if step.stepped else "skipped", semconv.RL_REASON: step.reason}
        )
        meters.step_duration.record(step.busy_s)
        for lag, experience in zip(lags, experiences, strict=True):
            meters.lag.record(lag, {semconv.RL_DOMAIN: experience.rollout.domain})
        for name, value in step.metrics.items():
            meters.step_metric.set(value, {semconv.RL_OBJECTIVE: name})
        for domain, part in step.domains.items():
            meters.tokens.add(part.n_tokens, {semconv.RL_DOMAIN: domain, semconv.RL_TOKEN_TYPE: "trained"})
        meters.version.set(step.version, {semconv.RL_ACTOR: self.kind})
        self._lag_max = max([self._lag_max, *lags])
        self.counters["steps"] += step.stepped
        self.counters["samples"] += step.n_samples
        self.counters["tokens"] += step.n_tokens
        self._tokens_per_s = step.n_tokens / step.busy_s if step.busy_s > 0 else 0.0

    def _write_weights(self) -> WeightManifest:
        tensors = self.policy.named_tensors()
        if self._broadcast_dtype is not None:
            tensors = {name: tensor.to(self._broadcast_dtype) for name, tensor in tensors.items()}
        return self.writer.write(to_chunks(tensors), self.epoch, self.version)

    async def _written(self) -> WeightManifest:
        """The current version, once there is room for its file; training waits, because nobody could follow."""
        alerted = False
        while True:
            try:
                return await asyncio.to_thread(self._write_weights)
            except OSError as error:
                if not alerted:
                    await self.alert("weights-not-written", "critical", f"training waits until there is room: {error}")
                alerted = True
            if self.draining.is_set():
                raise Retry(f"version {self.version} could not be written")
            await asyncio.sleep(AGAIN_S)

    async def _write_again(self) -> None:
        """The newest version's file has disappeared: it is made again, byte for byte."""
        async with self._turn:
            await asyncio.to_thread(self._write_weights)

    async def _until_fenced(self, topic: Topic) -> None:
        """End this life when another learner speaks for a later epoch: nobody listens to this one any more."""
        async for received in self.bus.follow(topic, "last"):
            record: WeightManifest | Step = received.record
            if record.epoch > self.epoch:
                raise RuntimeError(f"epoch {record.epoch} has begun: epoch {self.epoch} is over")

    async def _broadcast(self, batch_id: str | None) -> None:
        began = self.clock.monotonic()
        manifest = await self._written()
        manifest = manifest.model_copy(update={"batch_id": batch_id, "published_s": self.clock.now()})
        await self.send(Out(WEIGHTS, [manifest], (str(self.epoch),)), derive("weights", self.epoch, self.version))
        meters = self.context.telemetry.meters
        meters.weights_published.add(1)
        meters.weights_publish_duration.record(self.clock.monotonic() - began)

    def _outcome(
        self, group: Sequence[Experience], *, reason: DropReason | None = None, base: int | None = None
    ) -> Out:
        """The end of a group: trained on ``base`` (or earlier, when it is known already), or dropped for ``reason``."""
        outcome = end_of(group, self.epoch, self.version, reason, base)
        label = "trained" if reason is None else reason.value
        key = (outcome.status.value, outcome.domain)
        return Out(OUTCOMES, [outcome], key, outcome.group_id, derive("outcome", label, outcome.group_id))

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _checkpoint_is_due(self) -> bool:
        last = self.context.run.run.max_steps
        return bool(self._unsaved) and (
            self._unsaved >= self.config.checkpoint.every_steps or (bool(last) and self.version >= last)
        )

    async def _checkpoint(self) -> None:
        extra = {"epoch": self.epoch, "consumed": self.consumed.to_json()}
        try:
            await asyncio.to_thread(self.store.save, self.policy, self.trainer.state(), extra)
        except OSError as error:
            if not self._save_failed.is_set():
                await self.alert("checkpoint-failed", "critical", f"training goes on for a few batches: {error}")
            self._save_failed.set()
            return
        self._save_failed.clear()
        self._unsaved = 0
        self._unsaved_groups.clear()
        self.counters["checkpoints"] += 1
        saved, self._saved = self._saved, asyncio.Event()
        saved.set()

    async def _save_again(self) -> None:
        """Try a failed checkpoint again: the batches that wait for it may fill the inbox, so that none comes to ask."""
        while True:
            await self._save_failed.wait()
            await asyncio.sleep(AGAIN_S)
            async with self._turn:
                if self._save_failed.is_set():
                    await self._checkpoint()

    async def drain(self) -> None:
        """Save what has been learnt, so that nothing has to be trained again."""
        if hasattr(self, "trainer"):
            async with self._turn:
                if self._unsaved:
                    await self._checkpoint()

    async def stop(self) -> None:
        """Take the broadcast files out of shared memory; the checkpoint has what the run came to."""
        if hasattr(self, "writer"):
            await asyncio.to_thread(self.writer.remove)

    def gauges(self) -> dict[str, float]:
        """Where training stands."""
        version = self.trainer.version if hasattr(self, "trainer") else -1
        return {
            "version": version,
            "epoch": self.epoch,
            "lag_max": self._lag_max,
            "tokens_per_s": self._tokens_per_s,
            "unsaved": self._unsaved,
        }


def served_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype that generators serve, if it is not the learner's own float32; half the bytes for bfloat16."""
    return torch.bfloat16 if name == "bfloat16" or (name == "auto" and device.type == "cuda") else None


_SET = asyncio.Event()
_SET.set()
