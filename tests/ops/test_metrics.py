"""The table of instruments is complete, unambiguous and free of ids."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest
from opentelemetry.metrics import NoOpMeterProvider

from ops import semconv
from ops.metrics import INSTRUMENTS, Meters, views

ROOT = Path(__file__).resolve().parents[2]


def test_every_instrument_is_an_attribute_of_the_meters_and_the_other_way_round():
    assert list(typing.get_type_hints(Meters)) == [row.key for row in INSTRUMENTS]


def test_the_declared_types_are_those_of_the_instruments():
    kinds = {"Counter": "counter", "Histogram": "histogram", "Gauge": "gauge"}
    declared = {key: kinds[hint.__name__] for key, hint in typing.get_type_hints(Meters).items()}
    assert declared == {row.key: row.kind for row in INSTRUMENTS}


def test_every_instrument_is_recorded_somewhere():
    rooms = [path for room in ("runtime", "actors", "ops") for path in (ROOT / room).rglob("*.py")]
    code = "\n".join(path.read_text() for path in rooms if path.name != "metrics.py")
    unused = [row.key for row in INSTRUMENTS if not re.search(rf"\b(meters|meters\(\))\.{row.key}\b", code)]
    assert unused == []


def test_names_are_unique():
    assert len({row.name for row in INSTRUMENTS}) == len(INSTRUMENTS)


@pytest.mark.parametrize("row", INSTRUMENTS, ids=lambda row: row.name)
def test_an_instrument_has_a_dotted_name_a_unit_a_description_and_bounded_labels(row):
    assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", row.name)
    assert row.unit
    assert row.description
    assert not set(row.labels) & semconv.IDS


@pytest.mark.parametrize("row", [row for row in INSTRUMENTS if row.kind == "histogram"], ids=lambda row: row.name)
def test_a_histogram_has_rising_buckets(row):
    assert list(row.buckets) == sorted(set(row.buckets))
    assert row.buckets


def test_meters_of_a_provider_that_does_nothing_can_be_used():
    Meters(NoOpMeterProvider().get_meter("x")).tokens.add(1)


def test_there_is_a_view_for_every_instrument():
    assert len(views()) == len(INSTRUMENTS)
