"""Spans and metrics leave the process or are counted as lost; the actor is never held up and never sees an error."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import get_current_span

from messages import TOPICS
from ops import semconv, telemetry
from ops.exporters import BoundedSpanProcessor, CountedSpanExporter, Ledger
from ops.otlp_json import attributes_of
from ops.telemetry import Telemetry, TelemetryError
from ops.trace_ids import UrandomIds

SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03"
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Telemetry]:
    running = telemetry.setup("generator", instance="generator-0", run="r", folder=tmp_path, interval_s=3600)
    yield running
    running.shutdown()


def spans_in(folder: Path, instance: str = "generator-0") -> list[dict]:
    found = []
    for line in (folder / f"{instance}.spans.jsonl").read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                found += [{**span, "attributes": attributes_of(span["attributes"])} for span in scope["spans"]]
    return found


def metrics_in(folder: Path, instance: str = "generator-0") -> dict[str, dict]:
    line = (folder / f"{instance}.metrics.jsonl").read_text().splitlines()[-1]
    scopes = [scope for resource in json.loads(line)["resourceMetrics"] for scope in resource["scopeMetrics"]]
    return {metric["name"]: metric for scope in scopes for metric in scope["metrics"]}


@contextmanager
def backend(status: int) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An OTLP backend that answers ``status`` and keeps what it got."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Held(SpanExporter):
    """Lets nothing out before it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def export(self, spans):
        self.go.wait(20)
        return SpanExportResult.SUCCESS

    def shutdown(self):
        self.go.set()


def test_a_hop_is_one_trace_from_the_sender_through_the_handler_to_what_it_publishes(local, tmp_path):
    headers: dict[str, str] = {}
    context = local.extract({"traceparent": SENDER})
    with (
        local.consumer_span("turns", "id-1", 10, context, "generator-turns"),
        local.producer_span("rollouts", "id-2", 20, 16),
    ):
        local.inject(headers)
    local.shutdown()
    publish, process = spans_in(tmp_path)
    assert {publish["traceId"], process["traceId"]} == {SENDER.split("-")[1]}
    assert (process["parentSpanId"], publish["parentSpanId"]) == (SENDER.split("-")[2], process["spanId"])
    assert headers["traceparent"].split("-")[2] == publish["spanId"]


def test_spans_follow_the_messaging_conventions(local, tmp_path):
    context = local.extract({"traceparent": SENDER})
    with local.consumer_span("turns", "id-1", 10, context, "generator-turns", n_records=3):
        pass
    local.shutdown()
    (span,) = spans_in(tmp_path)
    assert (span["name"], span["kind"]) == ("process busrl.{run}.turns.{domain}", 5)
    assert span["links"] == [{"traceId": SENDER.split("-")[1], "spanId": SENDER.split("-")[2]}]
    assert span["attributes"] == {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.template": "busrl.{run}.turns.{domain}",
        "messaging.destination.subscription.name": "generator-turns",
        "messaging.message.id": "id-1",
        "messaging.message.body.size": 10,
        "messaging.batch.message_count": 3,
    }


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_the_name_of_a_topics_spans_is_a_template_without_any_id(topic):
    name = telemetry.destination_template(topic.name)
    assert name.startswith(f"busrl.{{run}}.{topic.name}.{{")
    assert name.count("{") == topic.key.count(".") + 2


def test_an_error_in_a_handler_goes_on_and_is_on_the_span(local, tmp_path):
    with pytest.raises(KeyError), local.span("work"):
        raise KeyError("x")
    local.shutdown()
    (span,) = spans_in(tmp_path)
    assert (span["attributes"][semconv.ERROR_TYPE], span["status"]["code"]) == ("KeyError", 2)


def test_an_error_that_is_handled_inside_still_marks_the_span(local, tmp_path):
    with local.span("work"):
        local.record_error(ValueError("prompt too long"))
    local.shutdown()
    (span,) = spans_in(tmp_path)
    assert span["status"] == {"code": 2, "message": "ValueError: prompt too long"}


def test_a_step_links_to_more_groups_than_the_sdks_own_limit(local, tmp_path):
    parents = [f"00-{i:032x}-{i:016x}-01" for i in range(1, 513)]
    with local.span("step", root=True, links=telemetry.links_to(parents)):
        pass
    local.shutdown()
    (span,) = spans_in(tmp_path)
    assert len(span["links"]) == 512
    assert "droppedLinksCount" not in span


def test_a_root_span_is_no_child_of_the_span_around_it(local, tmp_path):
    with local.span("outer"), local.span("step", root=True):
        pass
    local.shutdown()
    step, outer = spans_in(tmp_path)
    assert "parentSpanId" not in step
    assert step["traceId"] != outer["traceId"]


@pytest.mark.parametrize("bad", [None, "", "nonsense", "00-00000000000000000000000000000000-0000000000000000-01"])
def test_a_malformed_traceparent_gives_no_link(bad):
    assert telemetry.links_to([bad]) == []


@given(st.text() | st.binary().map(repr))
def test_whatever_a_header_holds_extracting_it_raises_nothing(text):
    telemetry.extract({"traceparent": text, "tracestate": text})


def test_an_unsampled_senders_trace_stays_unsampled_and_its_context_travels_on(local, tmp_path):
    headers: dict[str, str] = {}
    with local.consumer_span("turns", "id", 1, local.extract({"traceparent": UNSAMPLED})):
        local.inject(headers)
    local.shutdown()
    assert not (tmp_path / "generator-0.spans.jsonl").exists()
    assert headers["traceparent"].split("-")[1] == UNSAMPLED.split("-")[1]
    assert int(headers["traceparent"].split("-")[3], 16) & 1 == 0


def test_sampling_is_decided_at_the_root(tmp_path):
    none = telemetry.setup("curriculum", instance="c", run="r", folder=tmp_path, sample_ratio=0.0)
    with none.span("root"), none.span("child"):
        pass
    with none.consumer_span("turns", "id", 1, none.extract({"traceparent": SENDER})):
        pass
    none.shutdown()
    assert [span["name"] for span in spans_in(tmp_path, "c")] == ["process busrl.{run}.turns.{domain}"]


def test_the_few_and_precious_traces_are_always_kept(tmp_path):
    learner = telemetry.setup("learner", instance="l", run="r", folder=tmp_path, sample_ratio=0.0, sample_always=True)
    with learner.span("step", root=True):
        pass
    learner.shutdown()
    assert len(spans_in(tmp_path, "l")) == 1


def test_a_heartbeat_is_no_trace_of_its_own(local, tmp_path):
    headers: dict[str, str] = {}
    with local.producer_span("heartbeats", None, 100):
        local.inject(headers)
    assert headers == {}
    assert local.shutdown().spans == 0


def test_disabled_telemetry_writes_nothing_and_still_passes_the_context_on(tmp_path):
    nothing = telemetry.setup("generator", instance="g", run="r", folder=tmp_path, enabled=False)
    headers: dict[str, str] = {}
    with (
        nothing.consumer_span("turns", "id", 1, nothing.extract({"traceparent": SENDER})),
        nothing.producer_span("rollouts", "id", 1),
    ):
        nothing.inject(headers)
        nothing.meters.tokens.add(1)
    nothing.shutdown()
    assert list(tmp_path.iterdir()) == []
    assert headers["traceparent"] == SENDER


def test_equal_seeds_give_no_equal_ids():
    seen = set()
    for _ in range(2):
        random.seed(7)
        ids = UrandomIds()
        seen |= {ids.generate_span_id() for _ in range(1000)} | {ids.generate_trace_id() for _ in range(1000)}
    assert len(seen) == 4000


def test_forked_workers_do_not_share_ids():
    program = (
        "import os\nfrom ops.trace_ids import UrandomIds\nids = UrandomIds()\nids.generate_span_id()\n"
        "pid = os.fork()\n"
        "if pid: os.waitpid(pid, 0)\n"
        "print(*(ids.generate_span_id() for _ in range(100)), flush=True)\n"
        "if not pid: os._exit(0)\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert len(set(output.split())) == 200


def test_spans_beyond_the_queue_are_dropped_at_once_and_counted(monkeypatch, tmp_path):
    held = Held()
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    monkeypatch.setattr(telemetry, "span_exporter", lambda *_: held)
    full = telemetry.setup("generator", instance="g", run="r", folder=tmp_path, interval_s=3600)
    for _ in range(350):
        with full.span("work"):
            pass
    before = full.counts()
    held.go.set()
    after = full.shutdown()
    assert (before.spans, before.dropped, before.queued) == (350, 250, 100)
    assert (after.exported, after.dropped, after.queued) == (100, 250, 0)
    lost = metrics_in(tmp_path, "g")["rl.telemetry.spans.lost"]["sum"]["dataPoints"]
    assert {attributes_of(point["attributes"])["rl.reason"]: point["asInt"] for point in lost} == {
        "queue_full": "250",
        "export_failed": "0",
    }


def test_an_exporter_that_raises_costs_its_batch_and_nothing_else():
    class Broken(SpanExporter):
        def export(self, spans):
            raise OSError("disk full")

    ledger = Ledger(10)
    for _ in range(3):
        ledger.enter()
    assert CountedSpanExporter(Broken(), ledger).export([None, None, None]) is SpanExportResult.FAILURE  # type: ignore[list-item]
    assert (ledger.counts().failed, ledger.counts().last_error) == (3, "OSError: disk full")


def test_the_gate_lets_spans_in_again_when_the_queue_has_room(tmp_path):
    ledger = Ledger(1)
    assert [ledger.enter(), ledger.enter()] == [True, False]
    ledger.leave(1, True, "")
    assert ledger.enter()
    assert BoundedSpanProcessor.__mro__[1].__name__ == "BatchSpanProcessor"


def test_a_folder_that_can_not_be_written_costs_telemetry_only(tmp_path):
    (tmp_path / "telemetry").write_text("a file where the folder should be")
    running = telemetry.setup("generator", instance="g", run="r", folder=tmp_path / "telemetry")
    with running.span("work"):
        running.meters.tokens.add(1)
    counts = running.shutdown()
    assert (counts.failed, counts.metric_failures) == (1, 1)
    assert "Error" in counts.last_error


def test_a_backend_gets_spans_and_metrics_when_the_variable_names_it(monkeypatch, tmp_path):
    with backend(200) as (url, got):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        running = telemetry.setup("generator", instance="g", run="r", folder=tmp_path, interval_s=3600)
        with running.span("work"):
            running.meters.tokens.add(5, {semconv.RL_DOMAIN: "sums", semconv.RL_TOKEN_TYPE: "generated"})
        counts = running.shutdown()
    bodies = dict(got)
    traces = ExportTraceServiceRequest.FromString(bodies["/v1/traces"])
    metrics = ExportMetricsServiceRequest.FromString(bodies["/v1/metrics"])
    assert traces.resource_spans[0].scope_spans[0].spans[0].name == "work"
    assert "rl.tokens" in {m.name for m in metrics.resource_metrics[0].scope_metrics[0].metrics}
    assert (counts.exported, counts.metric_exports) == (1, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_refuses_is_counted_although_the_sdk_says_all_is_well(monkeypatch, tmp_path):
    with backend(405) as (url, got):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        running = telemetry.setup("generator", instance="g", run="r", folder=tmp_path, interval_s=3600)
        with running.span("work"):
            running.meters.tokens.add(1)
        counts = running.shutdown()
    assert {path for path, _ in got} == {"/v1/traces", "/v1/metrics"}
    assert (counts.exported, counts.failed, counts.metric_exports, counts.metric_failures) == (0, 1, 0, 1)


def test_where_nothing_listens_spans_stay_cheap_and_the_end_is_in_time(monkeypatch, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        running = telemetry.setup("generator", instance="g", run="r", folder=tmp_path, interval_s=3600)
        started = time.perf_counter()
        for _ in range(1000):
            with running.span("work"):
                pass
        spent_s = time.perf_counter() - started
        counts = running.shutdown(timeout_s=1.0)
        stopped_s = time.perf_counter() - started - spent_s
    assert spent_s < 2.0
    assert stopped_s < 3.0
    assert counts.exported == 0
    assert counts.spans == 1000 == counts.failed + counts.queued


def test_a_metric_keeps_to_its_labels_so_an_id_never_makes_a_series(local, tmp_path):
    for i in range(50):
        local.meters.tokens.add(2, {semconv.RL_DOMAIN: "sums", semconv.RL_TASK_ID: f"task-{i}"})
    local.shutdown()
    (point,) = metrics_in(tmp_path)["rl.tokens"]["sum"]["dataPoints"]
    assert (point["asInt"], attributes_of(point["attributes"])) == ("100", {semconv.RL_DOMAIN: "sums"})


def test_the_resource_says_which_actor_of_which_run_it_was(local, tmp_path):
    with local.span("work"):
        pass
    local.shutdown()
    line = json.loads((tmp_path / "generator-0.spans.jsonl").read_text())
    attributes = attributes_of(line["resourceSpans"][0]["resource"]["attributes"])
    assert attributes["service.name"] == "busrl-generator"
    assert (attributes["service.instance.id"], attributes["rl.run"]) == ("generator-0", "r")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "OTEL_BSP_MAX_QUEUE_SIZE is 'many', expected a whole number"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "-1", "OTEL_SPAN_LINK_COUNT_LIMIT is '-1', expected a whole number"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', this release speaks"),
    ],
)
def test_a_variable_that_can_not_be_followed_is_an_error_in_one_line(monkeypatch, tmp_path, variable, value, says):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(variable, value)
    with pytest.raises(TelemetryError, match=says):
        telemetry.setup("generator", instance="g", run="r", folder=tmp_path)


def test_signals_that_the_standard_variables_switch_off_are_off(monkeypatch, tmp_path):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    running = telemetry.setup("generator", instance="g", run="r", folder=tmp_path)
    with running.span("work"):
        running.meters.tokens.add(1)
    assert running.shutdown().spans == 0
    assert list(tmp_path.iterdir()) == []


def test_the_current_traceparent_is_that_of_the_span_around(local):
    assert telemetry.current_traceparent() is None
    with local.span("work"):
        found = telemetry.current_traceparent()
        expected = get_current_span().get_span_context().span_id
    assert found is not None
    assert found.split("-")[2] == f"{expected:016x}"
