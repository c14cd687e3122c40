"""Where spans and metrics go: to files here or to an OTLP backend; every one that gets lost on the way is counted.

Nothing here blocks or raises into an actor: spans wait in a bounded queue and leave from a thread of their own, a span
that finds the queue full is dropped and counted, and an exporter that fails costs its batch and is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from ops.bounded_file import BoundedFile
from ops.otlp_json import metrics_line, spans_line


@dataclass(frozen=True)
class TelemetryCounts:
    """What became of this process's telemetry so far: ``spans`` = exported + dropped + failed + queued."""

    spans: int = 0
    exported: int = 0
    dropped: int = 0
    """Spans that found the queue full."""
    failed: int = 0
    """Spans that the exporter was given and could not deliver."""
    metric_exports: int = 0
    metric_failures: int = 0
    last_error: str = ""

    @property
    def queued(self) -> int:
        """Spans that still wait."""
        return self.spans - self.exported - self.dropped - self.failed


class Ledger:
    """Counts spans and exports; safe to use from several threads."""

    def __init__(self, queue_size: int) -> None:
        self._lock = threading.Lock()
        self._room = queue_size
        self._queue_size = queue_size
        self._counts = dict.fromkeys(("spans", "exported", "dropped", "failed", "metric_exports", "metric_failures"), 0)
        self._last_error = ""

    def enter(self) -> bool:
        """Count one ended span; whether the queue has room for it."""
        with self._lock:
            self._counts["spans"] += 1
            if self._room <= 0:
                self._counts["dropped"] += 1
                return False
            self._room -= 1
            return True

    def leave(self, n: int, delivered: bool, error: str) -> None:
        """``n`` spans left the queue, delivered or lost."""
        with self._lock:
            self._room = min(self._room + n, self._queue_size)
            self._counts["exported" if delivered else "failed"] += n
            self._last_error = self._last_error if delivered else error

    def metrics(self, delivered: bool, error: str) -> None:
        """One export of metrics, delivered or lost."""
        with self._lock:
            self._counts["metric_exports" if delivered else "metric_failures"] += 1
            self._last_error = self._last_error if delivered else error

    def counts(self) -> TelemetryCounts:
        """A consistent copy."""
        with self._lock:
            return TelemetryCounts(**self._counts, last_error=self._last_error)


class CountedSpanExporter(SpanExporter):
    """Passes batches on to another exporter; never raises."""

    def __init__(self, inner: SpanExporter, ledger: Ledger) -> None:
        self._inner = inner
        self._ledger = ledger

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export and count."""
        error = f"{type(self._inner).__name__} reported a failure"
        try:
            result = self._inner.export(spans)
        except Exception as raised:
            result, error = SpanExportResult.FAILURE, f"{type(raised).__name__}: {raised}"
        self._ledger.leave(len(spans), result is SpanExportResult.SUCCESS, error)
        return result

    def shutdown(self) -> None:
        """Shut the inner exporter down."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the inner exporter."""
        return self._inner.force_flush(timeout_millis)


class BoundedSpanProcessor(BatchSpanProcessor):
    """The SDK's batch processor behind a gate that counts what the full queue turns away."""

    def __init__(self, exporter: SpanExporter, ledger: Ledger, queue_size: int, delay_s: float) -> None:
        super().__init__(
            CountedSpanExporter(exporter, ledger),
            max_queue_size=queue_size,
            schedule_delay_millis=delay_s * 1000,
            max_export_batch_size=min(512, queue_size),
        )
        self._ledger = ledger

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span, or count it as dropped."""
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled and self._ledger.enter():
            super().on_end(span)


class FileSpanExporter(SpanExporter):
    """One line of OTLP JSON per batch into a bounded file."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._file = BoundedFile(path, max_bytes)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write one batch.

        Raises:
            OSError: the file can not be written.
        """
        if spans:
            self._file.append(spans_line(spans))
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


class FileMetricExporter(MetricExporter):
    """One line of OTLP JSON per collection into a bounded file; counts and never raises."""

    def __init__(self, path: Path, max_bytes: int, ledger: Ledger) -> None:
        super().__init__()
        self._file = BoundedFile(path, max_bytes)
        self._ledger = ledger

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        """Write one collection."""
        try:
            self._file.append(metrics_line(metrics_data))
        except Exception as error:
            self._ledger.metrics(False, f"{type(error).__name__}: {error}")
            return MetricExportResult.FAILURE
        self._ledger.metrics(True, "")
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing waits here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        """Close the file."""
        self._file.close()


class CountedOTLPMetricExporter(OTLPMetricExporter):
    """The SDK's OTLP exporter of metrics; counts and never raises."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: object
    ) -> MetricExportResult:
        """Export and count."""
        error = "OTLPMetricExporter reported a failure"
        try:
            result = super().export(metrics_data, timeout_millis, **kwargs)
        except Exception as raised:
            result, error = MetricExportResult.FAILURE, f"{type(raised).__name__}: {raised}"
        self._ledger.metrics(result is MetricExportResult.SUCCESS, error)
        return result


def span_exporter(otlp: bool, path: Path, max_bytes: int) -> SpanExporter:
    """An OTLP exporter (configured by the standard ``OTEL_*`` variables) or one that writes ``path``."""
    return OTLPSpanExporter() if otlp else FileSpanExporter(path, max_bytes)


def metric_exporter(otlp: bool, path: Path, max_bytes: int, ledger: Ledger) -> MetricExporter:
    """An OTLP exporter (configured by the standard ``OTEL_*`` variables) or one that writes ``path``."""
    return CountedOTLPMetricExporter(ledger) if otlp else FileMetricExporter(path, max_bytes, ledger)
