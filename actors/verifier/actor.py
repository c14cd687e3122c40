"""The verifier: rollouts in, verdicts out. What a check needs of the task is read here; it never passed a generator."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

from actors.verifier.config import VerifierConfig
from actors.verifiers.pool import VerifierPool
from messages import Rollout, Task, Topic, Verdict
from messages.topics import ROLLOUTS, TASKS, VERDICTS
from ops import semconv
from runtime.actor import Actor, ActorContext, Delivery, Out, works
from runtime.errors import Rejected

KEPT_TASKS = 1024


class Verifier(Actor):
    """See the module."""

    kind = "verifier"

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self.config = cast(VerifierConfig, context.run.verifier)
        self.pool = VerifierPool(
            self.config.workers,
            self.config.time_limit_s,
            retries=self.config.retries,
            trust_code=context.run.run.trust_code,
            memory_limit_bytes=self.config.memory_limit_bytes,
        )
        self._tasks: OrderedDict[int, Task] = OrderedDict()

    async def start(self) -> None:
        """Start the check processes; without them the verifier does not run."""
        await self.pool.start()

    async def stop(self) -> None:
        """End the check processes."""
        await self.pool.close()

    def concurrency(self, topic: Topic) -> int:
        """Two parcels per check process: one being checked, one ready."""
        return 2 * self.config.workers

    @works(ROLLOUTS)
    async def on_rollouts(self, delivery: Delivery[Rollout]) -> Sequence[Out]:
        """Check a group's rollouts."""
        rollouts = delivery.records
        task = await self._task(rollouts[0])
        with self.context.telemetry.span(f"verify {task.verifier.kind}"):
            results = await self.pool.check([(task, rollout.response) for rollout in rollouts])
        meters = self.context.telemetry.meters
        verdicts = []
        for rollout, result in zip(rollouts, results, strict=True):
            verdicts.append(
                Verdict(
                    rollout=rollout,
                    status=result.status,
                    pass_rate=result.pass_rate,
                    scores=dict(result.scores),
                    log=result.log,
                    seconds=result.seconds,
                )
            )
            labels = {semconv.RL_VERIFIER: task.verifier.kind, semconv.RL_STATUS: result.status.value}
            meters.verdicts.add(1, {**labels, semconv.RL_DOMAIN: rollout.domain})
            meters.verify_duration.record(result.seconds, {semconv.RL_VERIFIER: task.verifier.kind})
            if result.is_broken:
                self.counters["infrastructure_errors"] += 1
                self.log.warning("check failed", rollout=rollout.id, verifier=task.verifier.kind, reason=result.log)
        self.counters["checks"] += len(results)
        return [Out(VERDICTS, verdicts, (rollouts[0].domain,), rollouts[0].group_id)]

    async def _task(self, rollout: Rollout) -> Task:
        task = self._tasks.get(rollout.task_seq)
        if task is None:
            received = await self.bus.get(TASKS, rollout.task_seq)
            if received is None or received.record.id != rollout.task_id:
                raise Rejected(f"task {rollout.task_id} is not at {rollout.task_seq} of the tasks stream any more")
            task = self._tasks[rollout.task_seq] = received.record
            while len(self._tasks) > KEPT_TASKS:
                self._tasks.popitem(last=False)
        return task
