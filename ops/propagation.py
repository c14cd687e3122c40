"""Trace context in headers, as W3C ``traceparent`` and ``tracestate``: what makes many processes one trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

from opentelemetry.context import Context
from opentelemetry.trace import Link, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


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
        context = get_current_span(extract({"traceparent": traceparent} if traceparent else None))
        if context.get_span_context().is_valid:
            found.append(Link(context.get_span_context()))
    return found
