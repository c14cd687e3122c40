"""The reward: a group's verdicts in, its experiences out; or one outcome that says why the group carries no signal.

A group lives and dies as one: when one of its samples could not be checked, none of them is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from actors.reward import advantage
from actors.reward.config import RewardConfig
from actors.reward.fusion import FusionError, fuse
from messages import DropReason, Experience, Outcome, OutcomeStatus, Verdict, VerdictStatus, derive
from messages.topics import EXPERIENCES, OUTCOMES, VERDICTS
from ops import semconv
from runtime.actor import Actor, ActorContext, Delivery, Out, works
from runtime.errors import Rejected


class Reward(Actor):
    """See the module."""

    kind = "reward"
    singleton = True

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self.config = cast(RewardConfig, context.run.reward)
        self._advantage = advantage.ESTIMATORS[self.config.advantage]

    @works(VERDICTS)
    async def on_verdicts(self, delivery: Delivery[Verdict]) -> Sequence[Out]:
        """Reward a group."""
        verdicts = delivery.records
        first = verdicts[0].rollout
        if {v.rollout.group_id for v in verdicts} != {first.group_id} or len(verdicts) != first.n:
            raise Rejected(f"parcel of {len(verdicts)} verdicts is not the whole group {first.group_id} of {first.n}")
        if any(verdict.status is VerdictStatus.INFRASTRUCTURE_ERROR for verdict in verdicts):
            return [self._drop(verdicts, [], DropReason.INFRASTRUCTURE_ERROR)]
        try:
            fused = [fuse(verdict, self.config.objectives) for verdict in verdicts]
        except FusionError as error:
            raise Rejected(str(error)) from error
        rewards = [reward for reward, _ in fused]
        self._observe(verdicts, rewards)
        if not any(verdict.rollout.loss_mask.any() for verdict in verdicts):
            return [self._drop(verdicts, rewards, DropReason.EMPTY)]
        if not advantage.has_signal(rewards):
            return [self._drop(verdicts, rewards, DropReason.NO_SIGNAL)]
        experiences = [
            Experience(
                rollout=verdict.rollout,
                reward=reward,
                rewards=scores,
                advantage=float(value),
                pass_rate=cast(float, verdict.pass_rate),
            )
            for verdict, (reward, scores), value in zip(verdicts, fused, self._advantage(rewards), strict=True)
        ]
        return [Out(EXPERIENCES, experiences, (first.domain,), first.group_id)]

    def _drop(self, verdicts: Sequence[Verdict], rewards: Sequence[float], reason: DropReason) -> Out:
        first = verdicts[0].rollout
        self.counters[f"dropped_{reason.value}"] += len(verdicts)
        outcome = Outcome(
            group_id=first.group_id,
            task_id=first.task_id,
            domain=first.domain,
            level=first.level,
            status=OutcomeStatus.DROPPED,
            reason=reason,
            n_samples=len(verdicts),
            n_tokens=sum(int(verdict.rollout.loss_mask.sum()) for verdict in verdicts),
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            pass_rate_mean=_mean_pass_rate(verdicts) if rewards else None,
            epoch=first.epoch,
            version=max(verdict.rollout.newest_version for verdict in verdicts),
            actor=self.kind,
        )
        key = (outcome.status.value, outcome.domain)
        return Out(OUTCOMES, [outcome], key, first.group_id, derive("outcome", reason.value, first.group_id))

    def _observe(self, verdicts: Sequence[Verdict], rewards: Sequence[float]) -> None:
        labels = {semconv.RL_DOMAIN: verdicts[0].rollout.domain}
        meters = self.context.telemetry.meters
        for reward in rewards:
            meters.reward.record(reward, labels)
        meters.pass_rate.record(_mean_pass_rate(verdicts), labels)
        self.counters["groups"] += 1
        self.counters["samples"] += len(rewards)
        self.counters["reward_sum"] += sum(rewards)


def _mean_pass_rate(verdicts: Sequence[Verdict]) -> float:
    rates = [verdict.pass_rate for verdict in verdicts if verdict.pass_rate is not None]
    return sum(rates) / len(rates) if rates else 0.0
