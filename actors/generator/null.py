"""A generator without a model: it answers at once with random tokens. It measures what everything around it costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from messages import FinishReason, Rollout, Topic, Turn, WeightManifest
from messages.topics import ROLLOUTS, TURNS, WEIGHTS
from runtime.actor import Actor, ActorContext, Delivery, Out, follows, works
from runtime.parcel import Received

VOCABULARY = 32
MEAN_TOKENS = 12


class NullGenerator(Actor):
    """Half of a group's samples answer "1", half "0", so that a task whose answer is "1" always has a signal."""

    kind = "generator"

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self.version = 0
        self.epoch = 0
        self._random = np.random.default_rng(context.run.run.seed * 1000 + context.index)

    def concurrency(self, topic: Topic) -> int:
        """As many as the real one would take."""
        return 32

    @follows(WEIGHTS, start="last")
    async def on_weights(self, received: Received) -> None:
        """Serve every version the moment it is announced."""
        manifest: WeightManifest = received.record
        self.epoch, self.version = manifest.epoch, manifest.version

    @works(TURNS)
    async def on_turn(self, delivery: Delivery[Turn]) -> Sequence[Out]:
        """Answer."""
        turn = delivery.records[0]
        rollouts = [self._rollout(turn, index) for index in range(turn.n)]
        self.counters["rollouts"] += turn.n
        self.counters["tokens"] += sum(len(rollout.token_ids) for rollout in rollouts)
        return [Out(ROLLOUTS, rollouts, (turn.domain,), turn.group_id)]

    def _rollout(self, turn: Turn, index: int) -> Rollout:
        n = int(self._random.integers(1, 2 * MEAN_TOKENS))
        now_s = self.clock.now()
        return Rollout(
            id=f"{turn.group_id}.{index}",
            group_id=turn.group_id,
            task_id=turn.task_id,
            task_seq=turn.task_seq,
            domain=turn.domain,
            level=turn.level,
            index=index,
            n=turn.n,
            prompt_ids=np.arange(16, dtype=np.int32),
            token_ids=self._random.integers(0, VOCABULARY, n).astype(np.int32),
            logprobs=np.full(n, -1.0, dtype=np.float32),
            loss_mask=np.ones(n, dtype=np.uint8),
            versions=np.full(n, self.version, dtype=np.int32),
            epoch=self.epoch,
            temperature=turn.sampling.temperature,
            finish_reason=FinishReason.STOP,
            response=str(index % 2),
            generator=self.context.instance,
            started_s=now_s,
            finished_s=now_s,
        )

    def gauges(self) -> dict[str, float]:
        """The version announced last."""
        return {"version": self.version, "epoch": self.epoch}
