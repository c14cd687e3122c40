"""Tracing and metrics of one process: every hop a span, one task's life one trace, and never a failure for the actor.

Telemetry goes to an OTLP/HTTP backend when the standard ``OTEL_*`` variables name one and into bounded files of the run
folder otherwise. The variables win over arguments. Whether a trace is kept is decided once, at its root.
"""

from __future__ import annotations

import os
import socket
import threading
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
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import Link, NoOpTracerProvider, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from messages.topics import BY_NAME
from ops import semconv
from ops.exporters import BoundedSpanProcessor, Ledger, TelemetryCounts, metric_exporter, span_exporter
from ops.metrics import Meters, views
from ops.propagation import current_traceparent, extract, inject, links_to
from ops.trace_ids import UrandomIds

__all__ = [
    "Telemetry",
    "TelemetryCounts",
    "TelemetryError",
    "current_traceparent",
    "disabled",
    "extract",
    "inject",
    "links_to",
    "setup",
]

QUEUE_SIZE = 32_768
"""Spans that may wait for the exporter; the SDK's own 2,048 is gone in a tenth of a second of a fast run."""
MAX_LINKS = 4096
"""A step links to every group it trained."""
QUIET_TOPICS = frozenset({"heartbeats", "snapshots", "blobs"})
"""Topics whose messages get no span: they say every second what nobody will look for in a trace."""
FILE_BYTES = 64 << 20
"""Bound of each of the two files of one process."""

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

Attributes = Mapping[str, AttributeValue]


class TelemetryError(ValueError):
    """A setting of the telemetry that this release can not follow."""


@cache
def destination_template(topic: str) -> str:
    """Low-cardinality name of a topic's subjects, such as ``busrl.{run}.turns.{domain}``."""
    known = BY_NAME.get(topic)
    tokens = known.key.split(".") if known else ["KEY"]
    return ".".join(("busrl", "{run}", topic, *(f"{{{token.lower()}}}" for token in tokens)))


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
        topic: str,
        message_id: str | None,
        body_bytes: int,
        n_records: int = 1,
        *,
        subject: str | None = None,
        attributes: Attributes | None = None,
    ) -> Iterator[Span]:
        """The span of publishing one message; call :meth:`inject` inside to send its context along.

        Args:
            topic: name of the topic.
            message_id: its ``Nats-Msg-Id``, if any.
            body_bytes: size of the payload.
            n_records: records in the parcel.
            subject: exact destination.
            attributes: more of them.
        """
        if topic in QUIET_TOPICS and not trace_api.get_current_span().is_recording():
            yield trace_api.INVALID_SPAN
            return
        found = self._messaging(topic, semconv.OPERATION_PUBLISH, semconv.TYPE_SEND)
        _fill(found, message_id, body_bytes, n_records, subject, attributes)
        name = _span_name(semconv.OPERATION_PUBLISH, topic)
        with self.span(name, attributes=found, kind=SpanKind.PRODUCER) as opened:
            yield opened

    @contextmanager
    def consumer_span(
        self,
        topic: str,
        message_id: str | None,
        body_bytes: int,
        context: Context | None,
        subscription: str = "",
        *,
        n_records: int = 1,
        subject: str | None = None,
        attributes: Attributes | None = None,
    ) -> Iterator[Span]:
        """The span of handling one message: child of the context that came with it, and linked to it.

        Args:
            topic: name of the topic.
            message_id: its ``Nats-Msg-Id``, if any.
            body_bytes: size of the payload.
            context: what :meth:`extract` found in its headers.
            subscription: name of the durable consumer.
            n_records: records in the parcel.
            subject: exact destination.
            attributes: more of them.
        """
        sender = trace_api.get_current_span(context).get_span_context()
        found = self._messaging(topic, semconv.OPERATION_PROCESS, semconv.TYPE_PROCESS)
        if subscription:
            found[semconv.MESSAGING_DESTINATION_SUBSCRIPTION_NAME] = subscription
        _fill(found, message_id, body_bytes, n_records, subject, attributes)
        name = _span_name(semconv.OPERATION_PROCESS, topic)
        links = (Link(sender),) if sender.is_valid else ()
        with self.span(name, context=context, links=links, attributes=found, kind=SpanKind.CONSUMER) as opened:
            yield opened

    @staticmethod
    def inject(headers: MutableMapping[str, str]) -> None:
        """Put the current trace context into headers, as W3C ``traceparent``."""
        inject(headers)

    @staticmethod
    def extract(headers: Mapping[str, str] | None) -> Context:
        """The trace context in headers; an empty one when there is none or it is malformed."""
        return extract(headers)

    @staticmethod
    def record_error(error: BaseException) -> None:
        """Mark the current span as failed by an error that is handled here and so does not leave it."""
        current = trace_api.get_current_span()
        if current.is_recording():
            current.set_attribute(semconv.ERROR_TYPE, type(error).__name__)
            current.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:1024]))

    def _messaging(self, topic: str, operation: str, kind: str) -> dict[str, AttributeValue]:
        key = (topic, operation)
        if key not in self._shared:
            self._shared[key] = {
                semconv.MESSAGING_SYSTEM: semconv.MESSAGING_SYSTEM_NATS,
                semconv.MESSAGING_OPERATION_NAME: operation,
                semconv.MESSAGING_OPERATION_TYPE: kind,
                semconv.MESSAGING_DESTINATION_TEMPLATE: destination_template(topic),
            }
        return dict(self._shared[key])


def _fill(
    found: dict[str, AttributeValue],
    message_id: str | None,
    body_bytes: int,
    n_records: int,
    subject: str | None,
    attributes: Attributes | None,
) -> None:
    found[semconv.MESSAGING_MESSAGE_BODY_SIZE] = body_bytes
    found[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = n_records
    if subject is not None:
        found[semconv.MESSAGING_DESTINATION_NAME] = subject
    if message_id is not None:
        found[semconv.MESSAGING_MESSAGE_ID] = message_id
    if attributes:
        found.update(attributes)


@cache
def _span_name(operation: str, topic: str) -> str:
    return f"{operation} {destination_template(topic)}"


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
