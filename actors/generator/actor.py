"""The generator: turns in, groups of rollouts out, on weights that change between two decode steps.

It serves nothing before it holds announced weights, and no turn before its weights are recent enough for it; a
broadcast that is torn, stale or forged is refused, counted and alerted, and the old version goes on serving.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from actors.generator.config import GeneratorConfig
from actors.policy.engine import PromptTooLong, Request, Sample, SamplingParams, TorchEngine
from actors.policy.engine_errors import EngineError
from actors.policy.engine_thread import EngineThread
from actors.policy.model import Policy, PolicyError, PromptEncodingError, load_policy
from actors.policy.weight_bytes import DamagedWeights, from_bytes
from messages import FinishReason, Rollout, Topic, Turn, WeightManifest
from messages.topics import ROLLOUTS, TURNS, WEIGHTS
from ops import semconv
from ops.telemetry import Attributes
from runtime import weights
from runtime.actor import Actor, ActorContext, Delivery, Out, follows, works
from runtime.errors import Rejected, Retry, UserError, WeightsRefused
from runtime.parcel import Received

AGAIN_S = 2.0
"""Pause before weights that were refused, and are still the newest, are fetched again."""
WEIGHTS_PATIENCE_S = 60.0
"""A turn that waits so long for weights goes back to the bus, where another generator may have them."""


class Generator(Actor):
    """See the module."""

    kind = "generator"

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self.config = cast(GeneratorConfig, context.run.generator)
        self.gate = weights.VersionGate()
        self._served = asyncio.Condition()
        self._newest: WeightManifest | None = None
        self._refused: WeightManifest | None = None
        self._news = asyncio.Event()

    async def start(self) -> None:
        """Load the policy and start the engine; weights come from the bus."""
        run = self.context.run
        policy = run.policy
        try:
            self.policy: Policy = await asyncio.to_thread(load_policy, policy.path, policy.device, policy.dtype)
        except PolicyError as error:
            raise UserError(str(error)) from error
        engine = TorchEngine(
            self.policy.model,
            max_sequences=self.config.max_sequences,
            kv_tokens=self.config.kv_tokens,
            max_prefill_tokens=self.config.max_prefill_tokens,
            seed=run.run.seed * 1000 + self.context.index,
        )
        self.engine = EngineThread(engine)
        self.spawn(self._apply_weights(), "apply-weights")
        self.spawn(self._watch_engine(), "watch-engine")

    async def stop(self) -> None:
        """End the engine's thread."""
        if hasattr(self, "engine"):
            await self.engine.close()

    def concurrency(self, topic: Topic) -> int:
        """Enough groups to fill the engine, and one to be ready when a group ends."""
        return math.ceil(self.config.max_sequences / self.context.run.training.group_size) + 1

    # --- turns ------------------------------------------------------------------------------------------------------

    @works(TURNS)
    async def on_turn(self, delivery: Delivery[Turn]) -> Sequence[Out]:
        """Sample a group."""
        turn, started_s = delivery.records[0], self.clock.now()
        await self._weights_for(turn)
        request = self._request(turn, delivery)
        attributes: Attributes = {
            semconv.GEN_AI_OPERATION_NAME: "chat",
            semconv.GEN_AI_REQUEST_MODEL: self.context.run.policy.path.rsplit("/", 1)[-1],
            semconv.RL_GROUP_ID: turn.group_id,
        }
        with self.context.telemetry.span("generate", attributes=attributes) as span:
            try:
                samples = await self.engine.generate(request)
            except PromptTooLong as error:
                raise Rejected(str(error)) from error
            except EngineError as error:
                raise Retry(f"the engine is broken: {error}") from error
            span.set_attribute(semconv.GEN_AI_USAGE_INPUT_TOKENS, len(request.prompt_ids))
            span.set_attribute(semconv.GEN_AI_USAGE_OUTPUT_TOKENS, sum(len(s.token_ids) for s in samples))
        rollouts = [self._rollout(turn, request, i, sample, started_s) for i, sample in enumerate(samples)]
        self._count(turn, rollouts, samples)
        return [Out(ROLLOUTS, rollouts, (turn.domain,), turn.group_id)]

    async def _weights_for(self, turn: Turn) -> None:
        """Wait for the weights that admitted the turn, or newer ones.

        Admission lets the pipeline fill until what is sampled by these weights is just young enough when its turn to
        be trained comes: what older ones sampled would be dropped as stale. A later epoch is always recent enough.
        """
        oldest = (turn.admitted_epoch, turn.admitted_version)
        async with self._served:
            try:
                await asyncio.wait_for(
                    self._served.wait_for(lambda: (self.gate.epoch, self.gate.version) >= oldest), WEIGHTS_PATIENCE_S
                )
            except TimeoutError:
                raise Retry(
                    f"epoch {oldest[0]} version {oldest[1]} has not arrived for {WEIGHTS_PATIENCE_S:.0f} s"
                ) from None

    def _request(self, turn: Turn, delivery: Delivery[Turn]) -> Request:
        try:
            prompt_ids = self.policy.encode([message.model_dump() for message in turn.messages])
        except PromptEncodingError as error:
            raise Rejected(f"task {turn.task_id}: {error}") from error
        sampling = SamplingParams(
            max_tokens=turn.sampling.max_tokens,
            temperature=turn.sampling.temperature,
            top_p=turn.sampling.top_p,
            top_k=turn.sampling.top_k,
            stop_token_ids=self.policy.stop_ids,
            seed=turn.sampling.seed,
        )
        deadline_s = None if turn.deadline_s is None else self.clock.monotonic() + turn.deadline_s
        return Request(f"{turn.id}/{delivery.deliveries}", prompt_ids, turn.n, sampling, deadline_s)

    def _rollout(self, turn: Turn, request: Request, index: int, sample: Sample, started_s: float) -> Rollout:
        return Rollout(
            id=f"{turn.group_id}.{index}",
            group_id=turn.group_id,
            task_id=turn.task_id,
            task_seq=turn.task_seq,
            domain=turn.domain,
            level=turn.level,
            index=index,
            n=turn.n,
            prompt_ids=request.prompt_ids,
            token_ids=sample.token_ids,
            logprobs=sample.logprobs,
            loss_mask=np.ones(len(sample.token_ids), dtype=np.uint8),
            versions=sample.versions,
            epoch=max(0, sample.epoch),
            temperature=turn.sampling.temperature,
            finish_reason=FinishReason(sample.finish_reason),
            response=self.policy.decode(sample.token_ids),
            generator=self.context.instance,
            started_s=started_s,
            finished_s=self.clock.now(),
        )

    def _count(self, turn: Turn, rollouts: Sequence[Rollout], samples: Sequence[Sample]) -> None:
        meters, labels = self.context.telemetry.meters, {semconv.RL_DOMAIN: turn.domain}
        n_tokens = sum(len(rollout.token_ids) for rollout in rollouts)
        self.counters["groups"] += 1
        self.counters["rollouts"] += len(rollouts)
        meters.tokens.add(n_tokens, {**labels, semconv.RL_TOKEN_TYPE: "generated"})
        meters.tokens.add(len(rollouts[0].prompt_ids), {**labels, semconv.RL_TOKEN_TYPE: "prompt"})
        meters.rollouts.add(len(rollouts), labels)
        meters.response_tokens.record(n_tokens / len(rollouts), labels)
        meters.rollout_duration.record(rollouts[0].finished_s - rollouts[0].started_s, labels)
        first = [sample.first_token_s for sample in samples if sample.first_token_s is not None]
        if first:
            meters.time_to_first_token.record(min(first), labels)

    # --- weights ----------------------------------------------------------------------------------------------------

    @follows(WEIGHTS, start="last")
    async def on_weights(self, received: Received) -> None:
        """Take note of a version; :meth:`_apply_weights` goes straight to the newest."""
        manifest: WeightManifest = received.record
        refusal = self.gate.refusal(manifest)
        if refusal is not None:
            await self._refuse(manifest, refusal)
            return
        self._newest = manifest
        self._news.set()

    async def _apply_weights(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            manifest, self._newest = self._newest, None
            if manifest is None:
                continue
            try:
                payload, source = await weights.fetch(self.bus, manifest, self.context.host)
                await self.engine.load_weights(from_bytes(payload), manifest.epoch, manifest.version)
            except (WeightsRefused, DamagedWeights, EngineError) as error:
                if self._newest is None:  # a version that is gone because a newer one is there is no fault
                    await self._refuse_for_now(manifest, str(error))
                continue
            await self._serve(manifest, source)

    async def _serve(self, manifest: WeightManifest, source: str) -> None:
        async with self._served:
            self.gate.passed(manifest)
            self._served.notify_all()
        meters = self.context.telemetry.meters
        meters.weights_delay.record(max(0.0, self.clock.now() - manifest.published_s), {semconv.RL_SOURCE: source})
        meters.weights_bytes.add(manifest.size_bytes, {semconv.RL_SOURCE: source})
        self.log.debug("serving", epoch=manifest.epoch, version=manifest.version, source=source)

    async def _refuse_for_now(self, manifest: WeightManifest, reason: str) -> None:
        """Try the newest version again in a while: where all wait for it, no newer one would ever come."""
        if manifest is not self._refused:
            self._refused = manifest
            await self._refuse(manifest, reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await self._news.wait()
        self._newest = self._newest or manifest
        self._news.set()

    async def _refuse(self, manifest: WeightManifest, reason: str) -> None:
        self.counters["weights_refused"] += 1
        self.context.telemetry.meters.weights_refused.add(1, {semconv.RL_REASON: "refused"})
        await self.alert("weights-refused", "critical", f"epoch {manifest.epoch} version {manifest.version}: {reason}")

    async def _watch_engine(self) -> None:
        raise await self.engine.death()

    def gauges(self) -> dict[str, float]:
        """The engine's load."""
        if not hasattr(self, "engine"):
            return {}
        load = self.engine.load()
        self.counters["tokens"] = load.generated_tokens
        self.counters["busy_s"] = load.busy_s
        self.counters["waiting_s"] = load.waiting_s
        return {
            "version": self.gate.version,
            "epoch": self.gate.epoch,
            "running": load.n_running,
            "waiting": load.n_waiting,
            "tokens_per_s": load.tokens_per_s,
        }
