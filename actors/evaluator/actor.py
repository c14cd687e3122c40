"""The evaluator: held-out tasks at chosen versions, scored by the verifiers that training uses.

Several evaluators share the domains by their index. An evaluation is stored once per version and domain, so a restarted
evaluator repeats nothing that is there already.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import cast

import torch

from actors.evaluator.config import EvaluatorConfig
from actors.evaluator.scoring import Score, Scorer
from actors.policy.engine import TorchEngine
from actors.policy.engine_errors import EngineError
from actors.policy.engine_thread import EngineThread
from actors.policy.model import PolicyError, load_policy
from actors.policy.weight_bytes import DamagedWeights, from_bytes
from actors.verifiers.pool import VerifierPool
from messages import Evaluation, Task, WeightManifest, derive
from messages.topics import EVALUATIONS, TASKS, WEIGHTS
from ops import semconv
from ops.telemetry import Attributes
from runtime import weights
from runtime.actor import Actor, ActorContext, Out, follows
from runtime.errors import UserError, WeightsRefused
from runtime.parcel import Received


class Evaluator(Actor):
    """See the module."""

    kind = "evaluator"

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self.config = cast(EvaluatorConfig, context.run.evaluator)
        self.gate = weights.VersionGate()
        domains = sorted(context.run.domains)
        self.domains = [name for i, name in enumerate(domains) if i % context.count == context.index % context.count]
        self._wanted: asyncio.Queue[tuple[WeightManifest, memoryview | None]] = asyncio.Queue()
        self._queued = (-1, -1)

    async def start(self) -> None:
        """Load the policy and start the engine and the check processes."""
        run = self.context.run
        try:
            self.policy = await asyncio.to_thread(load_policy, run.policy.path, run.policy.device, run.policy.dtype)
        except PolicyError as error:
            raise UserError(str(error)) from error
        engine = TorchEngine(self.policy.model, max_sequences=self.config.max_sequences, seed=run.run.seed)
        self.engine = EngineThread(engine)
        self.pool = VerifierPool(self.config.workers, self.config.time_limit_s, trust_code=run.run.trust_code)
        await self.pool.start()
        self.scorer = Scorer(self.policy, self.engine, self.pool, run.sampling.max_tokens, run.run.seed)
        self.spawn(self._evaluate(), "evaluate")

    async def stop(self) -> None:
        """End the engine and the check processes."""
        if hasattr(self, "engine"):
            await self.engine.close()
        if hasattr(self, "pool"):
            await self.pool.close()

    def is_full(self, version: int) -> bool:
        """Whether a version is scored on every held-out task: the first and the last are."""
        return version == 0 or version == self.context.run.run.max_steps

    def wants(self, version: int) -> bool:
        """Whether a version is scored at all."""
        every = self.config.every_versions
        return self.is_full(version) or (every > 0 and version % every == 0)

    @follows(WEIGHTS, start="all")
    async def on_weights(self, received: Received) -> None:
        """Take a version to score, bytes and all: its file may be gone when its turn comes."""
        manifest: WeightManifest = received.record
        mark = (manifest.epoch, manifest.version)
        if mark <= self._queued or not self.wants(manifest.version):
            return
        self._queued = mark
        payload = None
        if manifest.version > 0:  # version 0 is the policy folder's
            try:
                payload, _ = await weights.fetch(self.bus, manifest, self.context.host)
            except WeightsRefused as error:
                self._not_scored(manifest, error)
                return
        self._wanted.put_nowait((manifest, payload))

    async def _evaluate(self) -> None:
        while True:
            manifest, payload = await self._wanted.get()
            await self.unpaused.wait()
            if not self._wanted.empty() and not self.is_full(manifest.version):
                continue  # late already: the next one matters more
            try:
                tensors = await self._start_tensors() if payload is None else from_bytes(payload)
                await self.engine.load_weights(tensors, manifest.epoch, manifest.version)
            except (DamagedWeights, EngineError) as error:
                self._not_scored(manifest, error)
                continue
            self.gate.passed(manifest)
            await self._score_domains(manifest)

    def _not_scored(self, manifest: WeightManifest, error: Exception) -> None:
        self.counters["weights_refused"] += 1
        self.log.warning("version not scored", version=manifest.version, error=str(error))

    async def _start_tensors(self) -> dict[str, torch.Tensor]:
        policy = self.context.run.policy
        loaded = await asyncio.to_thread(load_policy, policy.path, policy.device, policy.dtype)
        return loaded.named_tensors()

    async def _score_domains(self, manifest: WeightManifest) -> None:
        full = self.is_full(manifest.version)
        done = {
            (e.version, e.domain, e.full)
            for e in (r.record for r in await self.bus.read(EVALUATIONS))
            if e.full == full
        }
        tasks = await self._tasks(self.config.full_tasks_per_domain if full else self.config.tasks_per_domain)
        n = self.config.samples_per_task if full else self.config.quick_samples_per_task
        for domain in self.domains:
            if (manifest.version, domain, full) in done or not tasks[domain]:
                continue
            attributes: Attributes = {semconv.RL_DOMAIN: domain, semconv.RL_POLICY_VERSION: manifest.version}
            with self.context.telemetry.span("evaluate", root=True, attributes=attributes):
                score = await self.scorer.score(tasks[domain], n)
                await self._publish(manifest, domain, score, full)

    async def _tasks(self, at_most: int) -> dict[str, list[Task]]:
        found: dict[str, list[Task]] = defaultdict(list)
        for domain in self.domains:
            for received in await self.bus.read(TASKS, "all", "eval", domain, "*"):
                if len(found[domain]) < at_most:
                    found[domain].append(received.record)
        return found

    async def _publish(self, manifest: WeightManifest, domain: str, score: Score, full: bool) -> None:
        evaluation = Evaluation(
            epoch=manifest.epoch,
            version=manifest.version,
            domain=domain,
            n_tasks=score.n_tasks,
            n_errors=score.n_errors,
            samples_per_task=score.samples_per_task,
            sampled_accuracy=score.sampled_accuracy,
            greedy_accuracy=score.greedy_accuracy,
            full=full,
            seconds=score.seconds,
            finished_s=self.clock.now(),
        )
        msg_id = derive("evaluation", manifest.epoch, manifest.version, domain, int(full))
        await self.send(Out(EVALUATIONS, [evaluation], (domain,)), msg_id)
        meters = self.context.telemetry.meters
        meters.evaluation_duration.record(score.seconds, {semconv.RL_DOMAIN: domain})
        for decoding, accuracy in (("sampled", score.sampled_accuracy), ("greedy", score.greedy_accuracy)):
            if accuracy is not None:
                meters.evaluation_score.set(accuracy, {semconv.RL_DOMAIN: domain, semconv.RL_DECODING: decoding})
        self.counters["evaluations"] += 1

    def gauges(self) -> dict[str, float]:
        """The version last scored, and how many wait."""
        if not hasattr(self, "engine"):
            return {}
        self.counters["tokens"] = self.engine.load().generated_tokens
        return {"version": self.gate.version, "epoch": self.gate.epoch, "waiting": self._wanted.qsize()}
