"""What an actor says in its heartbeats, as metrics: memory, load, waiting, repeats, versions."""

from __future__ import annotations

from messages import Heartbeat
from ops import semconv
from ops.metrics import Meters


class HeartbeatMeters:
    """Turns the heartbeats of one actor's life into metrics; counters become what was added since the last beat."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._before: dict[str, float] = {}

    def take(self, beat: Heartbeat) -> None:
        """Record one heartbeat."""
        meters, actor = self._meters, {semconv.RL_ACTOR: beat.kind}
        meters.rss.set(beat.rss_bytes, actor)
        meters.in_flight.set(beat.in_flight, actor)
        for gauge, name in ((meters.version, "version"), (meters.epoch, "epoch")):
            if name in beat.gauges:
                gauge.set(beat.gauges[name], actor)
        if "running" in beat.gauges:
            meters.running_sequences.set(beat.gauges["running"])
        if "open" in beat.gauges:
            meters.samples_open.set(beat.gauges["open"])
        handled = {**actor, semconv.MESSAGING_OPERATION_NAME: semconv.OPERATION_PROCESS}
        meters.consumed_messages.add(self._grown(beat, "handled"), handled)
        meters.redelivered.add(self._grown(beat, "redelivered"), actor)
        meters.duplicates.add(self._grown(beat, "duplicates"), actor)
        meters.busy.add(self._grown(beat, "busy_s"), actor)
        meters.waiting.add(self._grown(beat, "waiting_s"), actor)

    def _grown(self, beat: Heartbeat, counter: str) -> float:
        now = beat.counters.get(counter, 0.0)
        grown = max(0.0, now - self._before.get(counter, 0.0))
        self._before[counter] = now
        return grown
