"""The codec: what goes in comes out, and nothing that is not a parcel does anything but be refused."""

from __future__ import annotations

import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messages import ChatMessage, MessageError, Rollout, Snapshot, Task, VerifierSpec, decode, encode
from messages.codec import MAX_RECORDS
from messages.errors import MalformedPayload, UnknownSchema
from messages.record import SCHEMAS
from tests.messages.strategies import BY_SCHEMA, rollouts

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

A_ROLLOUT = Rollout(
    id="g.0", group_id="g", task_id="t", task_seq=1, domain="sums", index=0, n=2,
    prompt_ids=np.arange(3, dtype=np.int32), token_ids=np.arange(4, dtype=np.int32),
    logprobs=np.full(4, -0.5, dtype=np.float32), loss_mask=np.ones(4, dtype=np.uint8),
    versions=np.zeros(4, dtype=np.int32), epoch=0, temperature=1.0, finish_reason="stop", response="x",
    generator="generator-0", started_s=0.0, finished_s=1.0,
)  # fmt: skip
A_TASK = Task(
    id="t", domain="sums", messages=(ChatMessage(role="user", content="1+1="),), verifier=VerifierSpec(kind="exact")
)


def wire(record: object) -> list:
    return msgpack.unpackb(encode([record]))


def refusal(payload: bytes, header: str = "rollout/1") -> str:
    with pytest.raises(MalformedPayload) as caught:
        decode(header, payload)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def read_or_refused(header: str, payload: bytes) -> None:
    said = ""
    try:
        assert decode(header, payload)
    except MessageError as error:
        said = str(error)
    assert "\n" not in said


def test_every_record_has_a_strategy() -> None:
    assert BY_SCHEMA.keys() == SCHEMAS.keys()


@pytest.mark.parametrize("schema", sorted(BY_SCHEMA))
def test_every_record_comes_back_as_it_went(schema: str) -> None:
    @QUICK
    @given(st.lists(BY_SCHEMA[schema], min_size=1, max_size=2))
    def check(records: list) -> None:
        payload = encode(records)
        back = decode(records[0].schema_header(), payload)
        assert [type(record) for record in back] == [type(record) for record in records]
        assert encode(back) == payload

    check()


@given(rollouts)
@QUICK
def test_arrays_come_back_with_their_dtype_and_read_only(rollout: Rollout) -> None:
    (back,) = decode("rollout/1", encode([rollout]))
    for name in ("prompt_ids", "token_ids", "logprobs", "loss_mask", "versions"):
        sent, found = getattr(rollout, name), getattr(back, name)
        assert found.dtype == sent.dtype
        np.testing.assert_array_equal(found, sent)
        assert not found.flags.writeable


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, "expected NAME/VERSION"),
        ("", "expected NAME/VERSION"),
        ("rollout", "expected NAME/VERSION"),
        ("rollout/1\n", "expected NAME/VERSION"),
        ("rollout/" + "9" * 5000, "expected NAME/VERSION"),
        ("rollout/٣", "expected NAME/VERSION"),
        ("gradient/1", "'gradient' is not known"),
        ("rollout/2", "reads 'rollout/1'"),
        ("rollout/0", "reads 'rollout/1'"),
    ],
)
def test_a_schema_header_that_is_not_ours_is_refused(header: str | None, says: str) -> None:
    with pytest.raises(UnknownSchema, match=says):
        decode(header, encode([A_ROLLOUT]))


def test_an_unknown_field_of_a_newer_peer_is_ignored() -> None:
    items = wire(A_ROLLOUT)
    items[0]["entropies"] = [1, 2, 3]
    assert encode(decode("rollout/1", msgpack.packb(items))) == encode([A_ROLLOUT])


def test_a_missing_field_is_named() -> None:
    items = wire(A_ROLLOUT)
    del items[0]["epoch"]
    assert "rollout/1: epoch: Field required" in refusal(msgpack.packb(items))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_logprob_that_is_not_finite_is_refused(value: float) -> None:
    items = wire(A_ROLLOUT)
    items[0]["logprobs"]["b"] = np.array([-1, value, -1, -1], dtype="<f4").tobytes()
    assert "logprobs[1]" in refusal(msgpack.packb(items))


def test_arrays_of_unequal_length_are_refused() -> None:
    items = wire(A_ROLLOUT)
    items[0]["versions"] = {"d": "<i4", "s": [3], "b": bytes(12)}
    assert "versions has 3 entries, token_ids has 4" in refusal(msgpack.packb(items))


@pytest.mark.parametrize(
    "array",
    [
        {"d": "<i8", "s": [2], "b": bytes(16)},
        {"d": ">i4", "s": [4], "b": bytes(16)},
        {"d": "O", "s": [2], "b": bytes(16)},
        {"d": ["<i4"], "s": [4], "b": bytes(16)},
        {"d": "<i4", "s": [5], "b": bytes(16)},
        {"d": "<i4", "s": [2**62], "b": bytes(16)},
        {"d": "<i4", "s": [-4], "b": bytes(16)},
        {"d": "<i4", "s": [True], "b": bytes(4)},
        {"d": "<i4", "s": [4.0], "b": bytes(16)},
        {"d": "<i4", "s": [2, 2], "b": bytes(16)},
        {"d": "<i4", "s": [], "b": bytes(4)},
        {"d": "<i4", "s": 4, "b": bytes(16)},
        {"d": "<i4", "s": [4], "b": "x" * 16},
        {"d": "<i4", "s": [4]},
        {"s": [4], "b": bytes(16)},
        {},
        [[1, 2], [3, 4]],
        [2**31, 0, 0, 0],
        [2**63, 2**64 - 1],
        [0.5, 1.5],
        [None, {}],
        ["1", "2"],
        [[1], [2, 3]],
        "tokens",
        7,
        None,
    ],
)
def test_an_array_that_lies_about_itself_is_refused(array: object) -> None:
    items = wire(A_ROLLOUT)
    items[0]["prompt_ids"] = array
    assert "prompt_ids" in refusal(msgpack.packb(items))


def test_a_huge_declared_array_allocates_nothing() -> None:
    items = wire(A_ROLLOUT)
    items[0]["token_ids"] = {"d": "<i4", "s": [1 << 40], "b": bytes(16)}
    payload = msgpack.packb(items)
    tracemalloc.start()
    refusal(payload)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("value", "field"),
    [(np.array([2**31]), "prompt_ids"), (np.array([-(2**31) - 1]), "versions"), (np.array([0.5]), "prompt_ids")],
)
def test_a_number_that_does_not_fit_is_an_error_and_never_wraps(value: np.ndarray, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Rollout.model_validate({**A_ROLLOUT.model_dump(), field: value})


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x00\x00\xff\xff" * 1000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91\xc9\xff\xff\xff\xff\x01",
        b"\x91\xd6\xff\x00\x00\x00\x00",
        b"\x91\x81\x01\x02",
        b"\xa1\xff",
        b"\xc1",
        b"",
        b"\x90",
        b"\x91\xc0\x00",
        b"\x91\xc0",
    ],
    ids=lambda bomb: f"{bomb[:6].hex()}x{len(bomb)}",
)
def test_a_bomb_is_refused_without_taking_room(bomb: bytes) -> None:
    tracemalloc.start()
    refusal(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def test_deep_nesting_beside_a_wrong_field_is_refused_in_one_line() -> None:
    deep: object = 0
    for _ in range(450):
        deep = [deep]
    items = wire(A_TASK)
    items[0] |= {"metadata": {"deep": deep}, "domain": [deep]}
    assert "domain" in refusal(msgpack.packb(items), "task/1")


def test_too_many_records_are_refused_on_both_sides() -> None:
    record = Snapshot(kind="x", saved_s=0, state="")
    refusal(msgpack.packb(wire(record) * (MAX_RECORDS + 1)), "snapshot/1")
    with pytest.raises(ValueError, match=f"1 to {MAX_RECORDS} records, not {MAX_RECORDS + 1}"):
        encode([record] * (MAX_RECORDS + 1))


def test_a_parcel_is_never_empty_nor_mixed() -> None:
    with pytest.raises(ValueError, match="records, not 0"):
        encode([])
    with pytest.raises(ValueError, match="one schema only"):
        encode([A_ROLLOUT, A_TASK])


@pytest.mark.parametrize("value", [object(), 2**70, {1, 2}])
def test_a_value_without_a_form_on_the_wire_is_one_clear_error(value: object) -> None:
    with pytest.raises(ValueError, match="task/1 can not be encoded"):
        encode([A_TASK.model_copy(update={"metadata": {"x": value}})])


@given(st.binary(max_size=200), st.sampled_from(sorted(SCHEMAS)))
@settings(max_examples=250, deadline=None)
def test_random_bytes_never_raise_anything_but_a_message_error(payload: bytes, schema: str) -> None:
    read_or_refused(f"{schema}/1", payload)


@given(st.text(max_size=30))
def test_a_random_header_never_raises_anything_but_a_message_error(header: str) -> None:
    with pytest.raises(MessageError):
        decode(header, b"\x90")


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid parcel in which bytes were flipped, removed or added."""
    schema = draw(st.sampled_from(["task", "turn", "rollout", "verdict", "outcome", "dead_letter"]))
    payload = bytearray(encode([draw(BY_SCHEMA[schema])]))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(payload) - 1)))
        match draw(st.sampled_from(["flip", "cut", "add"])):
            case "flip":
                payload[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del payload[at : at + draw(st.integers(1, 4))]
            case _:
                payload[at:at] = draw(st.binary(min_size=1, max_size=4))
    return f"{schema}/1", bytes(payload)


@given(damaged())
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_damaged_parcel_is_read_or_refused_and_nothing_else(case: tuple[str, bytes]) -> None:
    read_or_refused(*case)


@st.composite
def retyped(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid parcel in which one value, anywhere, became another one."""
    schema = draw(st.sampled_from(sorted(SCHEMAS)))
    (item,) = wire(draw(BY_SCHEMA[schema]))
    other = draw(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
        | st.binary(max_size=5) | st.lists(st.integers(-(2**40), 2**40) | st.none(), max_size=3)
        | st.dictionaries(st.sampled_from(["d", "s", "b", "x"]), st.integers() .filter(lambda i: abs(i) < 2**63)
        | st.binary(max_size=4), max_size=3)
    )  # fmt: skip
    holder, key = item, draw(st.sampled_from(sorted(item)))
    while isinstance(holder[key], dict) and holder[key] and draw(st.booleans()):
        holder = holder[key]
        key = draw(st.sampled_from(sorted(holder)))
    holder[key] = other
    return f"{schema}/1", msgpack.packb([item])


@given(retyped())
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_value_of_another_type_is_read_or_refused_and_nothing_else(case: tuple[str, bytes]) -> None:
    read_or_refused(*case)
