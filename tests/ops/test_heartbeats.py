"""Heartbeats become metrics: gauges as they are, counters as what was added."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from messages import Heartbeat
from ops.heartbeats import HeartbeatMeters
from ops.metrics import Meters, views


def beat(counters: dict[str, float], gauges: dict[str, float]) -> Heartbeat:
    return Heartbeat(
        kind="generator", instance="generator-0", host="h", pid=1, state="running", started_s=0, sent_s=1, in_flight=3,
        loop_lag_s=0, rss_bytes=1000, counters=counters, gauges=gauges,
    )  # fmt: skip


def test_counters_add_up_to_what_the_actor_counted_and_gauges_are_the_last():
    reader = InMemoryMetricReader()
    meters = HeartbeatMeters(Meters(MeterProvider([reader], views=views()).get_meter("test")))
    meters.take(beat({"handled": 5, "waiting_s": 1.5}, {"version": 3, "running": 32}))
    meters.take(beat({"handled": 7, "waiting_s": 2.0}, {"version": 4, "running": 16}))
    found = {
        metric.name: metric.data.data_points[0].value
        for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    }
    assert found["messaging.client.consumed.messages"] == 7
    assert found["rl.actor.waiting"] == 2.0
    assert found["rl.policy.version"] == 4
    assert found["rl.generator.running"] == 16
    assert (found["rl.actor.rss"], found["rl.actor.in_flight"]) == (1000, 3)
