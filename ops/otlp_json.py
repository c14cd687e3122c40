"""Spans and metrics as OTLP JSON, the encoding that collectors read from files: pure functions over SDK data.

One export is one line: ``{"resourceSpans": [...]}`` or ``{"resourceMetrics": [...]}``. Trace and span ids are
hexadecimal and 64-bit integers are strings, as the OTLP specification asks (JSON Protobuf Encoding).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, StatusCode

_STATUS = {StatusCode.UNSET: 0, StatusCode.OK: 1, StatusCode.ERROR: 2}


def spans_line(spans: Sequence[ReadableSpan]) -> bytes:
    """One line for spans of one resource."""
    scopes: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        scope = span.instrumentation_scope
        scopes.setdefault(scope.name if scope else "", []).append(_span(span))
    resource = spans[0].resource if spans else Resource.get_empty()
    scope_spans = [{"scope": {"name": name}, "spans": found} for name, found in scopes.items()]
    return _line({"resourceSpans": [{"resource": _resource(resource), "scopeSpans": scope_spans}]})


def metrics_line(data: MetricsData) -> bytes:
    """One line for everything that one collection found."""
    return _line(
        {
            "resourceMetrics": [
                {
                    "resource": _resource(resource.resource),
                    "scopeMetrics": [
                        {"scope": _scope(scope.scope), "metrics": [_metric(metric) for metric in scope.metrics]}
                        for scope in resource.scope_metrics
                    ],
                }
                for resource in data.resource_metrics
            ]
        }
    )


def attributes_of(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The reverse of the attribute encoding: a plain dictionary of a list of key-value pairs."""
    return {pair["key"]: _plain(pair["value"]) for pair in pairs}


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False, default=str).encode()


def _resource(resource: Resource) -> dict[str, Any]:
    return {"attributes": _attributes(resource.attributes)}


def _scope(scope: InstrumentationScope) -> dict[str, Any]:
    return {"name": scope.name}


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _number(value)}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}


def _plain(value: Mapping[str, Any]) -> Any:
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_plain(item) for item in value["arrayValue"].get("values", [])]
    return next(iter(value.values()), None)


def _number(value: float) -> float | str:
    """Protobuf's JSON spells what JSON can not: NaN, Infinity, -Infinity."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    encoded: dict[str, Any] = {
        **(_ids(context) if context else {}),
        "name": span.name,
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes),
        "status": {"code": _STATUS[span.status.status_code]},
    }
    if span.parent is not None:
        encoded["parentSpanId"] = f"{span.parent.span_id:016x}"
    if span.status.description:
        encoded["status"]["message"] = span.status.description
    if span.events:
        encoded["events"] = [_event(event) for event in span.events]
    if span.links:
        encoded["links"] = [_link(link) for link in span.links]
    if span.dropped_links:
        encoded["droppedLinksCount"] = span.dropped_links
    if span.dropped_attributes:
        encoded["droppedAttributesCount"] = span.dropped_attributes
    return encoded


def _ids(context: SpanContext) -> dict[str, str]:
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}


def _event(event: Event) -> dict[str, Any]:
    return {"timeUnixNano": str(event.timestamp), "name": event.name, "attributes": _attributes(event.attributes)}


def _link(link: Link) -> dict[str, Any]:
    encoded: dict[str, Any] = dict(_ids(link.context))
    if link.attributes:
        encoded["attributes"] = _attributes(link.attributes)
    return encoded


def _metric(metric: Metric) -> dict[str, Any]:
    encoded: dict[str, Any] = {"name": metric.name, "description": metric.description or "", "unit": metric.unit or ""}
    data = metric.data
    if isinstance(data, Sum):
        encoded["sum"] = {
            "dataPoints": [_number_point(point) for point in data.data_points],
            "aggregationTemporality": int(data.aggregation_temporality),
            "isMonotonic": data.is_monotonic,
        }
    elif isinstance(data, Gauge):
        encoded["gauge"] = {"dataPoints": [_number_point(point) for point in data.data_points]}
    elif isinstance(data, Histogram):
        encoded["histogram"] = {
            "dataPoints": [_histogram_point(point) for point in data.data_points],
            "aggregationTemporality": int(data.aggregation_temporality),
        }
    return encoded


def _number_point(point: NumberDataPoint) -> dict[str, Any]:
    value = {"asInt": str(point.value)} if isinstance(point.value, int) else {"asDouble": _number(point.value)}
    return {**_point(point), **value}


def _histogram_point(point: HistogramDataPoint) -> dict[str, Any]:
    return {
        **_point(point),
        "count": str(point.count),
        "sum": _number(float(point.sum)),
        "min": _number(float(point.min)),
        "max": _number(float(point.max)),
        "bucketCounts": [str(count) for count in point.bucket_counts],
        "explicitBounds": list(point.explicit_bounds),
    }


def _point(point: NumberDataPoint | HistogramDataPoint) -> dict[str, Any]:
    return {
        "attributes": _attributes(point.attributes),
        "startTimeUnixNano": str(point.start_time_unix_nano or 0),
        "timeUnixNano": str(point.time_unix_nano),
    }
