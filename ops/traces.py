"""One task's life, read from the spans that a run wrote down: ``python -m ops.traces runs/latest TASK_OR_GROUP_ID``.

A trace runs from the publish through generator, verifier, reward and replay by the context in the headers. A learner's
step is a trace of its own that links to the groups it trained; it is shown below the trace that it links to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops import semconv
from ops.otlp_json import attributes_of

SHOWN = (
    semconv.RL_TASK_ID,
    semconv.RL_GROUP_ID,
    semconv.RL_DOMAIN,
    semconv.RL_POLICY_VERSION,
    semconv.RL_STEP,
    semconv.GEN_AI_USAGE_INPUT_TOKENS,
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    semconv.MESSAGING_BATCH_MESSAGE_COUNT,
    semconv.ERROR_TYPE,
)
"""Attributes worth a place on a line."""


@dataclass(frozen=True)
class SpanLine:
    """A span as it was written. Times are Unix seconds; ``links`` are (trace id, span id)."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    instance: str
    started_s: float
    ended_s: float
    failed: bool
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()


def read_spans(folder: Path) -> Iterator[SpanLine]:
    """Every span in the files of ``folder`` (the run's ``telemetry``), the older half of each file first."""
    for path in sorted(folder.glob("*.spans.jsonl*"), key=lambda path: (path.name.removesuffix(".1"), path.suffix)):
        with path.open("rb") as lines:
            for line in lines:
                yield from _spans_of(line)


def find(spans: Sequence[SpanLine], wanted: str) -> list[SpanLine]:
    """The spans of the traces that ``wanted`` names: a trace id, or a task's, group's, batch's or message's id.

    Steps that link into such a trace are among them.
    """
    named = {span.trace_id for span in spans if _names(span, wanted)}
    linked = {span.trace_id for span in spans if any(trace in named for trace, _ in span.links)}
    return [span for span in spans if span.trace_id in named | linked]


def tree(spans: Iterable[SpanLine]) -> list[str]:
    """One line per span, children below their parents, in the order in which they began."""
    found = sorted(spans, key=lambda span: span.started_s)
    if not found:
        return []
    known = {span.span_id for span in found}
    children: dict[str, list[SpanLine]] = {}
    for span in found:
        children.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)
    lines: list[str] = []
    begin_s = found[0].started_s
    waiting = [(span, 0) for span in reversed(children.get("", []))]
    while waiting:
        span, depth = waiting.pop()
        lines.append(_line(span, depth, begin_s))
        waiting += [(child, depth + 1) for child in reversed(children.get(span.span_id, []))]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Show a trace; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 2:
        sys.stderr.write("error: expected a run folder and an id: python -m ops.traces runs/latest TASK_OR_GROUP_ID\n")
        return 2
    folder = Path(given[0]) / "telemetry"
    if not folder.is_dir():
        sys.stderr.write(f"error: {folder} is not there; expected a run folder whose telemetry went to files\n")
        return 2
    lines = tree(find(list(read_spans(folder)), given[1]))
    if not lines:
        sys.stderr.write(f"error: no span in {folder} names {given[1]!r}; it may not have been sampled or kept\n")
        return 2
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _names(span: SpanLine, wanted: str) -> bool:
    return span.trace_id == wanted or any(span.attributes.get(key) == wanted for key in semconv.IDS)


def _line(span: SpanLine, depth: int, begin_s: float) -> str:
    shown = " ".join(f"{key.split('.', 1)[1]}={span.attributes[key]}" for key in SHOWN if key in span.attributes)
    mark = " FAILED" if span.failed else ""
    links = f" links={len(span.links)}" if len(span.links) > 1 else ""
    took_ms = 1000 * (span.ended_s - span.started_s)
    at_ms = 1000 * (span.started_s - begin_s)
    what = f"{'  ' * depth}{span.name} [{span.instance}] {shown}{links}{mark}"
    return f"{at_ms:10.1f} ms {took_ms:9.1f} ms  {what}".rstrip()


def _spans_of(line: bytes) -> Iterator[SpanLine]:
    try:
        document = json.loads(line)
        for resource in document["resourceSpans"]:
            instance = str(attributes_of(resource["resource"]["attributes"]).get(semconv.SERVICE_INSTANCE_ID, "?"))
            for scope in resource["scopeSpans"]:
                yield from (_span(span, instance) for span in scope["spans"])
    except (ValueError, KeyError, TypeError):
        return  # half a line of a killed process


def _span(span: dict[str, Any], instance: str) -> SpanLine:
    return SpanLine(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        name=span["name"],
        instance=instance,
        started_s=int(span["startTimeUnixNano"]) / 1e9,
        ended_s=int(span["endTimeUnixNano"]) / 1e9,
        failed=span["status"].get("code") == 2,
        attributes=attributes_of(span["attributes"]),
        links=tuple((link["traceId"], link["spanId"]) for link in span.get("links", ())),
    )


if __name__ == "__main__":
    raise SystemExit(main())
