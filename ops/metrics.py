"""Every instrument of the system, made in this one place: name, unit, description, labels and buckets.

The labels of an instrument are a closed set: an attribute that is not in it never reaches a backend (a view drops it),
and no label is an id. So the number of time series is bounded by domains x reasons, however long a run lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from opentelemetry.metrics import Counter, Histogram, Meter
from opentelemetry.metrics import _Gauge as Gauge
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from ops import semconv

MILLISECONDS_TO_MINUTE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MICROSECONDS_TO_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
TENTH_TO_HOUR = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
UNIT_INTERVAL = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
VERSIONS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
TOKENS = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0)
BYTES = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 8388608.0, 67108864.0)

_MESSAGING = (semconv.MESSAGING_OPERATION_NAME, semconv.RL_TOPIC, semconv.ERROR_TYPE)


@dataclass(frozen=True)
class Instrument:
    """One row: ``key`` is its name in :class:`Meters`, ``name`` its name in a backend."""

    key: str
    kind: Literal["counter", "histogram", "gauge"]
    name: str
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


INSTRUMENTS: tuple[Instrument, ...] = (
    # The bus
    Instrument("operation_duration", "histogram", semconv.MESSAGING_CLIENT_OPERATION_DURATION, "s",
               "Time a publish, fetch or ack took", _MESSAGING, MICROSECONDS_TO_SECONDS),
    Instrument("sent_messages", "counter", semconv.MESSAGING_CLIENT_SENT_MESSAGES, "{message}",
               "Messages published", _MESSAGING),
    Instrument("consumed_messages", "counter", semconv.MESSAGING_CLIENT_CONSUMED_MESSAGES, "{message}",
               "Messages delivered to a handler", (semconv.MESSAGING_OPERATION_NAME, semconv.RL_ACTOR)),
    Instrument("process_duration", "histogram", semconv.MESSAGING_PROCESS_DURATION, "s",
               "Time a handler took for one message", _MESSAGING, MILLISECONDS_TO_MINUTE),
    Instrument("message_bytes", "histogram", "rl.message.size", "By", "Size of a published message",
               (semconv.RL_TOPIC,), BYTES),
    Instrument("queue_wait", "histogram", "rl.queue.wait", "s", "From publish to the start of handling",
               (semconv.RL_TOPIC,), MILLISECONDS_TO_MINUTE),
    Instrument("redelivered", "counter", "rl.messages.redelivered", "{message}", "Deliveries after the first",
               (semconv.RL_ACTOR,)),
    Instrument("duplicates", "counter", "rl.messages.duplicate", "{message}", "Repeats that were recognised as such",
               (semconv.RL_ACTOR,)),
    Instrument("dead_letters", "counter", "rl.messages.dead", "{message}", "Messages given up",
               (semconv.RL_TOPIC, semconv.RL_REASON)),
    # Every actor
    Instrument("busy", "counter", "rl.actor.busy", "s", "Time spent on work", (semconv.RL_ACTOR,)),
    Instrument("waiting", "counter", "rl.actor.waiting", "s", "Time spent waiting for work", (semconv.RL_ACTOR,)),
    Instrument("in_flight", "gauge", "rl.actor.in_flight", "{message}", "Inputs being handled", (semconv.RL_ACTOR,)),
    Instrument("loop_lag", "histogram", "rl.actor.loop_lag", "s", "Delay of the event loop", (semconv.RL_ACTOR,),
               MILLISECONDS_TO_MINUTE),
    Instrument("rss", "gauge", "rl.actor.rss", "By", "Resident memory", (semconv.RL_ACTOR,)),
    # Tasks, groups, rollouts
    Instrument("groups_dispatched", "counter", "rl.groups.dispatched", "{group}", "Groups sent to be generated",
               (semconv.RL_DOMAIN,)),
    Instrument("groups_closed", "counter", "rl.groups.closed", "{group}", "Groups that ended, by how and why",
               (semconv.RL_DOMAIN, semconv.RL_STATUS, semconv.RL_REASON)),
    Instrument("samples_open", "gauge", "rl.samples.open", "{rollout}", "Samples dispatched and not ended"),
    Instrument("rollouts", "counter", "rl.rollouts", "{rollout}", "Samples generated, by how they ended",
               (semconv.RL_DOMAIN, semconv.RL_REASON)),
    Instrument("tokens", "counter", "rl.tokens", "{token}", "Tokens by kind: prompt, generated, trained",
               (semconv.RL_DOMAIN, semconv.RL_TOKEN_TYPE)),
    Instrument("response_tokens", "histogram", "rl.rollout.length", "{token}", "Tokens of one sample",
               (semconv.RL_DOMAIN,), TOKENS),
    Instrument("rollout_duration", "histogram", "rl.rollout.duration", "s", "From taking the turn to the last token",
               (semconv.RL_DOMAIN,), TENTH_TO_HOUR),
    Instrument("time_to_first_token", "histogram", semconv.GEN_AI_TIME_TO_FIRST_TOKEN, "s",
               "From taking the turn to the first token", (semconv.RL_DOMAIN,), MILLISECONDS_TO_MINUTE),
    Instrument("running_sequences", "gauge", "rl.generator.running", "{sequence}", "Sequences being decoded"),
    # Verdicts and rewards
    Instrument("verdicts", "counter", "rl.verdicts", "{rollout}", "Checks by what they came to",
               (semconv.RL_DOMAIN, semconv.RL_STATUS, semconv.RL_VERIFIER)),
    Instrument("verify_duration", "histogram", "rl.verify.duration", "s", "Time of one check",
               (semconv.RL_VERIFIER,), MILLISECONDS_TO_MINUTE),
    Instrument("reward", "histogram", "rl.reward", "1", "Reward of one rollout, fused", (semconv.RL_DOMAIN,),
               UNIT_INTERVAL),
    Instrument("pass_rate", "histogram", "rl.pass_rate", "1", "Mean pass rate of a group", (semconv.RL_DOMAIN,),
               UNIT_INTERVAL),
    # Replay and learner
    Instrument("buffered", "gauge", "rl.replay.samples", "{rollout}", "Samples in the replay buffer",
               (semconv.RL_DOMAIN,)),
    Instrument("lag", "histogram", "rl.policy.lag", "{version}", "Version trained minus the oldest token's version",
               (semconv.RL_DOMAIN,), VERSIONS),
    Instrument("steps", "counter", "rl.steps", "{step}", "Batches by what became of them",
               (semconv.RL_STATUS, semconv.RL_REASON)),
    Instrument("step_duration", "histogram", "rl.step.duration", "s", "Time of one optimiser step", (),
               MILLISECONDS_TO_MINUTE),
    Instrument("step_metric", "gauge", "rl.step.metric", "1", "Figures of the last step: loss, entropy, ratios, ...",
               (semconv.RL_OBJECTIVE,)),
    Instrument("version", "gauge", "rl.policy.version", "{version}", "Weight version", (semconv.RL_ACTOR,)),
    Instrument("epoch", "gauge", "rl.policy.epoch", "{epoch}", "Weight epoch", (semconv.RL_ACTOR,)),
    # Weights
    Instrument("weights_published", "counter", "rl.weights.published", "{version}", "Versions broadcast"),
    Instrument("weights_publish_duration", "histogram", "rl.weights.publish.duration", "s",
               "Time to write and announce a version", (), MILLISECONDS_TO_MINUTE),
    Instrument("weights_delay", "histogram", "rl.weights.delay", "s", "From a version's announcement to its use",
               (semconv.RL_SOURCE,), MILLISECONDS_TO_MINUTE),
    Instrument("weights_bytes", "counter", "rl.weights.received", "By", "Bytes of weights fetched",
               (semconv.RL_SOURCE,)),
    Instrument("weights_refused", "counter", "rl.weights.refused", "{version}", "Broadcasts not applied, by why",
               (semconv.RL_REASON,)),
    # Held-out score
    Instrument("evaluation_score", "gauge", "rl.evaluation.score", "1", "Held-out accuracy",
               (semconv.RL_DOMAIN, semconv.RL_DECODING)),
    Instrument("evaluation_duration", "histogram", "rl.evaluation.duration", "s", "Time of one evaluation",
               (semconv.RL_DOMAIN,), TENTH_TO_HOUR),
)  # fmt: skip


class Meters:
    """The instruments, by key: ``meters.tokens.add(n, {semconv.RL_DOMAIN: "sums"})``."""

    operation_duration: Histogram
    sent_messages: Counter
    consumed_messages: Counter
    process_duration: Histogram
    message_bytes: Histogram
    queue_wait: Histogram
    redelivered: Counter
    duplicates: Counter
    dead_letters: Counter
    busy: Counter
    waiting: Counter
    in_flight: Gauge
    loop_lag: Histogram
    rss: Gauge
    groups_dispatched: Counter
    groups_closed: Counter
    samples_open: Gauge
    rollouts: Counter
    tokens: Counter
    response_tokens: Histogram
    rollout_duration: Histogram
    time_to_first_token: Histogram
    running_sequences: Gauge
    verdicts: Counter
    verify_duration: Histogram
    reward: Histogram
    pass_rate: Histogram
    buffered: Gauge
    lag: Histogram
    steps: Counter
    step_duration: Histogram
    step_metric: Gauge
    version: Gauge
    epoch: Gauge
    weights_published: Counter
    weights_publish_duration: Histogram
    weights_delay: Histogram
    weights_bytes: Counter
    weights_refused: Counter
    evaluation_score: Gauge
    evaluation_duration: Histogram

    def __init__(self, meter: Meter) -> None:
        create: dict[str, Callable[..., object]] = {
            "counter": meter.create_counter,
            "histogram": meter.create_histogram,
            "gauge": meter.create_gauge,
        }
        for row in INSTRUMENTS:
            setattr(self, row.key, create[row.kind](row.name, unit=row.unit, description=row.description))


def views() -> list[View]:
    """What keeps each instrument to its labels and gives histograms their buckets."""
    return [
        View(
            instrument_name=row.name,
            attribute_keys=set(row.labels),
            aggregation=ExplicitBucketHistogramAggregation(row.buckets) if row.kind == "histogram" else None,
        )
        for row in INSTRUMENTS
    ]
