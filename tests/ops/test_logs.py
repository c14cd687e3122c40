"""A log line says who spoke in which trace, and never a secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from ops import logs, telemetry

PRINTABLE = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="@/"), min_size=14, max_size=30
)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    for name in logs.QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.NOTSET)
        logging.getLogger(name).propagate = True
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def configured(**how) -> io.StringIO:
    stream = io.StringIO()
    logs.setup(run="r", actor="generator", instance="generator-0", stream=stream, **how)
    return stream


def test_a_line_names_the_run_the_actor_the_instance_the_level_and_the_time():
    stream = configured()
    structlog.get_logger().info("swapped weights", version=3)
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "event": "swapped weights",
        "run": "r",
        "actor": "generator",
        "instance": "generator-0",
        "version": 3,
    }


def test_a_line_inside_a_span_names_its_trace(tmp_path):
    stream = configured()
    running = telemetry.setup("generator", instance="g", run="r", folder=tmp_path, metrics=False)
    with running.span("work") as span:
        structlog.get_logger().info("inside")
    structlog.get_logger().info("outside")
    running.shutdown()
    inside, outside = lines(stream)
    assert inside["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert inside["span_id"] == f"{span.get_span_context().span_id:016x}"
    assert "trace_id" not in outside


def test_lines_of_libraries_take_the_same_way():
    stream = configured()
    logging.getLogger("nats").warning("reconnecting to %s", "nats://me:hunter22@host:4222")
    (line,) = lines(stream)
    assert (line["event"], line["logger"]) == ("reconnecting to nats://[secret]@host:4222", "nats")
    assert line["instance"] == "generator-0"


def test_the_exporters_own_loggers_are_silent():
    stream = configured()
    logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("Failed to export")
    logging.getLogger("urllib3.connectionpool").critical("retrying")
    assert stream.getvalue() == ""


@given(password=PRINTABLE)
def test_no_password_of_a_url_comes_through(password):
    assert password not in logs.mask_text(f"connecting to nats://generator:{password}@10.0.0.1:4222 now")


@pytest.mark.parametrize(
    "key", ["password", "bus_password", "api_key", "token", "auth_token", "secret", "Authorization"]
)
def test_a_value_under_a_secrets_name_is_hidden_at_any_depth(key):
    assert logs.masked({"a": [{key: "hunter22"}]}) == {"a": [{key: logs.MASK}]}


@pytest.mark.parametrize("key", ["tokens", "n_tokens", "token_ids", "max_tokens", "tokens_per_s", "prompt_tokens"])
def test_figures_about_tokens_are_no_secrets(key):
    assert logs.masked({key: 5}) == {key: 5}
    assert not logs.is_secret(key)


@pytest.mark.parametrize(
    "text", ["password=hunter22", "Bearer hunter22hunter22", '"secret": "hunter22"', "nkey: hunter22"]
)
def test_a_secret_inside_a_sentence_is_hidden(text):
    assert "hunter22" not in logs.mask_text(f"could not: {text}, gave up")


def test_a_traceback_on_a_terminal_shows_no_local_variables_and_no_secret():
    stream = configured(console=True)
    local = "hunter22"
    try:
        raise ValueError(f"refused nats://me:{local}@host")
    except ValueError:
        structlog.get_logger().exception("could not connect")
    assert "ValueError" in stream.getvalue()
    assert "hunter22" not in stream.getvalue()


def test_a_traceback_in_json_is_one_line():
    stream = configured()
    try:
        raise ValueError("x")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = lines(stream)
    assert "ValueError: x" in line["exception"]


def test_an_endless_value_is_cut():
    assert len(logs.masked("x" * 100_000)) < logs.MAX_TEXT + 100


def test_a_file_and_a_stream_get_the_same_events(tmp_path: Path):
    stream = configured(file=tmp_path / "logs" / "g.log")
    structlog.get_logger().info("hello")
    assert json.loads((tmp_path / "logs" / "g.log").read_text())["event"] == lines(stream)[0]["event"] == "hello"


def test_an_unknown_level_is_an_error_that_names_the_right_ones():
    with pytest.raises(ValueError, match="expected debug, info, warning or error"):
        configured(level="loud")


def test_lines_below_the_level_are_left_out():
    stream = configured(level="warning")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]
