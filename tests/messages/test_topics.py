"""The table of topics: one stream per row, nothing in two of them, and nobody in it who does not exist."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages import TOPICS, InvalidName, Retention, Topic, check_name, derive
from messages.record import SCHEMAS
from messages.topics import EVERY_ACTOR, USER, topic_of

KINDS = {*EVERY_ACTOR, USER}
names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,10}", fullmatch=True)


def test_names_and_streams_are_unique() -> None:
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)
    assert len({topic.stream("run") for topic in TOPICS}) == len(TOPICS)


def test_no_subject_belongs_to_two_topics() -> None:
    for one, other in itertools.permutations(TOPICS, 2):
        prefix = other.all_subjects("run").removesuffix(">")
        assert not one.subject("run", "x", "y").startswith(prefix), (one.name, other.name)


@given(st.sampled_from(TOPICS), names, names, names)
def test_two_runs_share_neither_stream_nor_subject(topic: Topic, run: str, other: str, key: str) -> None:
    assert topic_of(topic.subject(run, key)) is topic
    if run != other:
        assert topic.stream(run) != topic.stream(other)
        assert not topic.subject(run, key).startswith(topic.all_subjects(other).removesuffix(">"))


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_row_names_only_kinds_and_records_that_exist(topic: Topic) -> None:
    assert set(topic.publishers) <= KINDS
    assert set(topic.consumers) <= KINDS
    assert topic.publishers
    assert topic.record is None or SCHEMAS[topic.record.schema_name] is topic.record


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_row_is_bounded(topic: Topic) -> None:
    assert topic.max_bytes > 0


@pytest.mark.parametrize(
    "topic", [topic for topic in TOPICS if topic.retention is Retention.WORK], ids=lambda topic: topic.name
)
def test_work_has_one_kind_of_consumer_and_is_never_forgotten(topic: Topic) -> None:
    assert len(topic.consumers) == 1
    assert topic.consumers[0] in EVERY_ACTOR
    assert not topic.discard_old
    assert topic.max_age_s == 0
    assert topic.ack_wait_s >= 10


@pytest.mark.parametrize("name", ["", "A", "a b", "a.b", "a*", ">", "-a", "a\n", "ä", "x" * 65, "a/b", ".."])
def test_a_name_that_can_not_be_a_token_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="not a valid name"):
        check_name(name, "run")
    with pytest.raises(InvalidName):
        TOPICS[0].all_subjects(name)


@given(st.lists(st.text(max_size=6) | st.integers()), st.lists(st.text(max_size=6) | st.integers()))
def test_ids_differ_where_their_parts_do(parts: list, others: list) -> None:
    same = [str(part) for part in parts] == [str(part) for part in others]
    assert (derive(*parts) == derive(*others)) is same
