"""Tracing and metrics of one process: every hop a span, one task's life one trace, and never a failure for the actor.

Telemetry goes to an OTLP/HTTP backend when the standard ``OTEL_*`` variables name one and into bounded files of the run
folder otherwise. The variables win over arguments. Whether a trace is kept is decided once, at its root.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from opentelemetry import metrics as metrics_api
from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.metrics import Meter, MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import Link, NoOpTracerProvider, Span, SpanKind, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from messages.topics import Topic
from ops import semconv
from ops.exporters import BoundedSpanProcessor, Ledger, TelemetryCounts, metric_exporter, span_exporter
from ops.metrics import Meters, views

QUEUE_SIZE = 32_768
"""Spans that may wait for the exporter; the SDK's own 2,048 is gone in a tenth of a second of a fast run."""
MAX_LINKS = 4096
"""A step links to every group it trained."""
FILE_BYTES = 64 << 20
"""Bound of each of the two files of one process."""

_PROPAGATOR = TraceContextTextMapPropagator()
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

Attributes = Mapping[str, AttributeValue]


class TelemetryError(ValueError):
    """A setting of the telemetry that this release can not follow."""


class UrandomIds(IdGenerator):
    """Ids from the operating system: the seeded ``random`` would give every worker of a run the same ones.

    Bits are fetched for many ids at a time, since each system call gives up the interpreter lock; a forked child throws
    its parent's away.
    """

    def __init__(self) -> None:
        self._pool: deque[int] = deque()
        os.register_at_fork(after_in_child=self._pool.clear)

    def generate_span_id(self) -> int:
        """64 random bits, not 0."""
        while True:
            try:
                return self._pool.pop()
            except IndexError:
                bits = os.urandom(8 * 512)
                self._pool.extend(filter(None, struct.unpack("<512Q", bits)))

    def generate_trace_id(self) -> int:
        """128 random bits, not 0."""
        return self.generate_span_id() << 64 | self.generate_span_id()

    def is_trace_id_random(self) -> bool:
        """Samplers may rely on the bits; traceparents end in -03 when sampled."""
        return True


def inject(headers: MutableMapping[str, str], context: Context | None = None) -> None:
    """Put the current (or the given) trace context into headers, as W3C ``traceparent``."""
    _PROPAGATOR.inject(headers, context)


def extract(headers: Mapping[str, str] | None) -> Context:
    """The trace context in headers; an empty one when there is none or it is malformed."""
    return _PROPAGATOR.extract(headers or {}, Context())


def current_traceparent() -> str | None:
    """The W3C ``traceparent`` of the current span, to be stored with an item that will be linked to later."""
    headers: dict[str, str] = {}
    inject(headers)
    return headers.get("traceparent")


def links_to(traceparents: Iterable[str | None]) -> list[Link]:
    """Links to the spans that ``traceparents`` name; malformed or absent ones are left out."""
    found = []
    for traceparent in traceparents:
        context = trace_api.get_current_span(extract({"traceparent": traceparent} if traceparent else None))
        if context.get_span_context().is_valid:
            found.append(Link(context.get_span_context()))
    return found


@cache
def destination_template(topic: Topic) -> str:
    """Low-cardinality name of a topic's subjects, such as ``busrl.{run}.turns.{domain}``."""
    key = ".".join(f"{{{token.lower()}}}" for token in topic.key.split("."))
    return f"busrl.{{run}}.{topic.name}.{key}"


class Telemetry:
    """The tracer, the meters and their life in one process. Made by :func:`setup` or :func:`disabled`."""

    def __init__(self, tracers: TracerProvider, meters: MeterProvider, ledger: Ledger | None = None) -> None:
        self._tracers = tracers
        self._meters = meters
        self._ledger = ledger
        self._stopped = False
        self._shared: dict[tuple[str, str], dict[str, AttributeValue]] = {}
        self.tracer: Tracer = tracers.get_tracer(semconv.SCOPE)
        self.meter: Meter = meters.get_meter(semconv.SCOPE)
        self.meters = Meters(self.meter)

    def counts(self) -> TelemetryCounts:
        """What was exported and what was lost so far; goes into heartbeats."""
        return self._ledger.counts() if self._ledger else TelemetryCounts()

    def shutdown(self, timeout_s: float = 5.0) -> TelemetryCounts:
        """Send what waits, for ``timeout_s`` at most, and stop. Blocks: call it in a thread from a running loop."""
        if not self._stopped and self._ledger is not None:
            self._stopped = True
            worker = threading.Thread(target=self._stop, name="telemetry-shutdown", daemon=True)
            worker.start()
            worker.join(timeout_s)
        return self.counts()

    def _stop(self) -> None:
        for provider in (self._tracers, self._meters):
            if isinstance(provider, SdkTracerProvider | SdkMeterProvider):
                provider.shutdown()

    @contextmanager
    def span(
        self,
        name: str,
        *,
        root: bool = False,
        links: Sequence[Link] = (),
        context: Context | None = None,
        attributes: Attributes | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[Span]:
        """A span as the current one; an exception marks it as failed and goes on.

        Args:
            name: low-cardinality; never an id.
            root: begin a new trace, whatever the current span is.
            links: spans that this one came from without being their child.
            context: parent, if not the current span.
            attributes: known at the start (what sampling may look at).
            kind: the OpenTelemetry kind.
        """
        parent = Context() if root else context
        opened = self.tracer.start_span(name, parent, kind=kind, attributes=attributes, links=links)
        try:
            with trace_api.use_span(opened, end_on_exit=False):
                yield opened
        except BaseException as error:
            opened.set_attribute(semconv.ERROR_TYPE, type(error).__name__)
            raise
        finally:
            opened.end()

    @contextmanager
    def producer_span(
        self,
        topic: Topic,
        *,
        subject: str,
        headers: MutableMapping[str, str] | None = None,
        body_bytes: int = 0,
        n_records: int = 1,
        message_id: str | None = None,
        attributes: Attributes | None = None,
    ) -> Iterator[Span]:
        """The span of publishing one message; ``headers`` receive its context."""
        found = self._messaging(topic, semconv.OPERATION_PUBLISH, semconv.TYPE_SEND)
        found[semconv.MESSAGING_DESTINATION_NAME] = subject
        found[semconv.MESSAGING_MESSAGE_BODY_SIZE] = body_bytes
        found[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = n_records
        if message_id is not None:
            found[semconv.MESSAGING_MESSAGE_ID] = message_id
        if attributes:
            found.update(attributes)
        name = f"{semconv.OPERATION_PUBLISH} {destination_template(topic)}"
        with self.span(name, attributes=found, kind=SpanKind.PRODUCER) as opened:
            if headers is not None:
                inject(headers)
            yield opened

    @contextmanager
    def consumer_span(
        self,
        topic: Topic,
        *,
        subject: str,
        headers: Mapping[str, str] | None,
        subscription: str = "",
        body_bytes: int = 0,
        n_records: int = 1,
        message_id: str | None = None,
        attributes: Attributes | None = None,
    ) -> Iterator[Span]:
        """The span of handling one message: child of the context in its headers, and linked to it."""
        context = extract(headers)
        sender = trace_api.get_current_span(context).get_span_context()
        found = self._messaging(topic, semconv.OPERATION_PROCESS, semconv.TYPE_PROCESS)
        found[semconv.MESSAGING_DESTINATION_NAME] = subject
        found[semconv.MESSAGING_MESSAGE_BODY_SIZE] = body_bytes
        found[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = n_records
        if subscription:
            found[semconv.MESSAGING_DESTINATION_SUBSCRIPTION_NAME] = subscription
        if message_id is not None:
            found[semconv.MESSAGING_MESSAGE_ID] = message_id
        if attributes:
            found.update(attributes)
        name = f"{semconv.OPERATION_PROCESS} {destination_template(topic)}"
        links = (Link(sender),) if sender.is_valid else ()
        with self.span(name, context=context, links=links, attributes=found, kind=SpanKind.CONSUMER) as opened:
            yield opened

    def _messaging(self, topic: Topic, operation: str, kind: str) -> dict[str, AttributeValue]:
        key = (topic.name, operation)
        if key not in self._shared:
            self._shared[key] = {
                semconv.MESSAGING_SYSTEM: semconv.MESSAGING_SYSTEM_NATS,
                semconv.MESSAGING_OPERATION_NAME: operation,
                semconv.MESSAGING_OPERATION_TYPE: kind,
                semconv.MESSAGING_DESTINATION_TEMPLATE: destination_template(topic),
            }
        return dict(self._shared[key])


def disabled() -> Telemetry:
    """Telemetry that does nothing; trace context that arrives still travels on."""
    return Telemetry(NoOpTracerProvider(), NoOpMeterProvider())


def setup(
    service: str,
    *,
    instance: str,
    run: str,
    folder: Path,
    enabled: bool = True,
    traces: bool = True,
    metrics: bool = True,
    sample_ratio: float = 1.0,
    sample_always: bool = False,
    interval_s: float = 10.0,
    file_bytes: int = FILE_BYTES,
) -> Telemetry:
    """Start the telemetry of this process.

    Args:
        service: kind of actor; the service name is ``busrl-SERVICE``.
        instance: which one of its kind, such as ``generator-0``; names the files.
        run: name of the run.
        folder: where the files go when no OTLP backend is named (``telemetry/`` of the run folder).
        enabled: False for nothing at all, as ``OTEL_SDK_DISABLED=true``.
        traces: False for no spans.
        metrics: False for no metrics.
        sample_ratio: share of traces that begin here to keep, in [0, 1]; a trace that began elsewhere keeps its fate.
        sample_always: keep every trace that begins here (learner, evaluator, launcher: few and precious).
        interval_s: seconds between two exports of the metrics.
        file_bytes: bound of each file.

    Raises:
        TelemetryError: an ``OTEL_*`` variable or argument asks for what does not exist here.
    """
    _check(sample_ratio, interval_s)
    if not enabled or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return disabled()
    traces = traces and os.environ.get("OTEL_TRACES_EXPORTER", "").strip() != "none"
    metrics = metrics and os.environ.get("OTEL_METRICS_EXPORTER", "").strip() != "none"
    resource = _resource(service, instance, run)
    queue_size = _integer("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_SIZE)
    ledger = Ledger(queue_size)
    tracers: TracerProvider = NoOpTracerProvider()
    meters: MeterProvider = NoOpMeterProvider()
    if traces:
        provider = SdkTracerProvider(
            sampler=_sampler(sample_ratio, sample_always),
            resource=resource,
            shutdown_on_exit=False,
            id_generator=UrandomIds(),
            span_limits=SpanLimits(max_links=_integer("OTEL_SPAN_LINK_COUNT_LIMIT", MAX_LINKS)),
            meter_provider=NoOpMeterProvider(),
        )
        exporter = span_exporter(_otlp("TRACES"), folder / f"{instance}.spans.jsonl", file_bytes)
        delay_s = _integer("OTEL_BSP_SCHEDULE_DELAY", 1000) / 1000
        provider.add_span_processor(BoundedSpanProcessor(exporter, ledger, queue_size, delay_s))
        tracers = provider
    if metrics:
        path = folder / f"{instance}.metrics.jsonl"
        reader = PeriodicExportingMetricReader(
            metric_exporter(_otlp("METRICS"), path, file_bytes, ledger),
            export_interval_millis=_integer("OTEL_METRIC_EXPORT_INTERVAL", int(interval_s * 1000)),
        )
        meters = SdkMeterProvider([reader], resource=resource, shutdown_on_exit=False, views=views())
    telemetry = Telemetry(tracers, meters, ledger)
    _observe_losses(telemetry)
    return telemetry


def _observe_losses(telemetry: Telemetry) -> None:
    def lost(_options: metrics_api.CallbackOptions) -> Iterable[metrics_api.Observation]:
        counts = telemetry.counts()
        yield metrics_api.Observation(counts.dropped, {semconv.RL_REASON: "queue_full"})
        yield metrics_api.Observation(counts.failed, {semconv.RL_REASON: "export_failed"})

    telemetry.meter.create_observable_counter(
        "rl.telemetry.spans.lost", [lost], unit="{span}", description="Spans that reached no backend, by why"
    )


def _sampler(ratio: float, always: bool) -> Sampler | None:
    """None leaves the choice to the SDK, which reads ``OTEL_TRACES_SAMPLER``."""
    if os.environ.get("OTEL_TRACES_SAMPLER"):
        return None
    return ParentBased(ALWAYS_ON if always else TraceIdRatioBased(ratio))


def _resource(service: str, instance: str, run: str) -> Resource:
    attributes: dict[str, AttributeValue] = {
        semconv.SERVICE_NAMESPACE: "busrl",
        semconv.SERVICE_INSTANCE_ID: instance,
        semconv.HOST_NAME: socket.gethostname(),
        semconv.PROCESS_PID: os.getpid(),
        semconv.RL_RUN: run,
        semconv.RL_ACTOR: service,
    }
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes[semconv.SERVICE_NAME] = f"busrl-{service}"
    return Resource.create(attributes)


def _otlp(signal: str) -> bool:
    specific = f"OTEL_EXPORTER_OTLP_{signal}_"
    if not (os.environ.get(_ENDPOINT) or os.environ.get(f"{specific}ENDPOINT")):
        return False
    for name in (f"{specific}PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(name)
        if protocol and protocol != "http/protobuf":
            raise TelemetryError(f"{name} is {protocol!r}, this release speaks 'http/protobuf' only")
        if protocol:
            break
    return True


def _check(sample_ratio: float, interval_s: float) -> None:
    if not 0.0 <= sample_ratio <= 1.0:
        raise TelemetryError(f"sample_ratio is {sample_ratio}, expected a share in [0, 1]")
    if not interval_s > 0.0:
        raise TelemetryError(f"interval_s is {interval_s}, expected seconds above 0")


def _integer(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isdigit() or int(text) < 1:
        raise TelemetryError(f"{variable} is {text!r}, expected a whole number of 1 or more")
    return int(text)
