"""The engine against the model's own forward pass, and the life of a request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.policy.engine import EngineError, PromptTooLong, Request, Sample, SamplingParams, TorchEngine


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def prompt(rng: np.random.Generator, length: int, vocabulary: int = 48) -> np.ndarray:
    return rng.integers(0, vocabulary, length).astype(np.int32)


def finish(engine: TorchEngine) -> dict[str, list[Sample]]:
    out: dict[str, list[Sample]] = {}
    while not engine.idle:
        for done in engine.step():
            assert done.request_id not in out
            out[done.request_id] = done.samples
    return out


def forward_logprobs(model, ids: np.ndarray, sample: Sample, temperature: float = 1.0) -> np.ndarray:
    """Log-probs of the sample's tokens by one plain forward pass."""
    whole = torch.from_numpy(np.concatenate([ids, sample.token_ids]).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=whole).logits[0, len(ids) - 1 : -1] / temperature
    tokens = torch.from_numpy(sample.token_ids.astype(np.int64))
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, None])[:, 0].numpy()


@pytest.mark.parametrize(("fast", "band_bytes"), [(True, 1 << 18), (True, 1), (False, 1)])
def test_logprobs_equal_a_plain_forward_pass_for_any_mix_of_lengths(make_llama, fast, band_bytes):
    model, rng = make_llama(), np.random.default_rng(0)
    engine = TorchEngine(model, max_sequences=7, fast=fast, band_bytes=band_bytes)
    requests = {}
    for index in range(14):
        sampling = SamplingParams(max_tokens=int(rng.integers(1, 40)), temperature=float(rng.choice([0.7, 1.0])))
        requests[str(index)] = Request(str(index), prompt(rng, int(rng.integers(1, 60))), 3, sampling)
        engine.submit(requests[str(index)])
    out = finish(engine)
    assert out.keys() == requests.keys()
    for name, samples in out.items():
        request = requests[name]
        for sample in samples:
            expected = forward_logprobs(model, request.prompt_ids, sample, request.sampling.temperature)
            np.testing.assert_allclose(sample.logprobs, expected, atol=1e-4)


def test_greedy_tokens_equal_generate(make_llama):
    model, rng = make_llama(), np.random.default_rng(1)
    ids = prompt(rng, 9)
    engine = TorchEngine(model, max_sequences=4)
    engine.submit(Request("a", ids, 1, SamplingParams(max_tokens=20, temperature=0)))
    engine.submit(Request("b", prompt(rng, 30), 3, SamplingParams(max_tokens=7)))
    sample = finish(engine)["a"][0]
    expected = model.generate(
        torch.from_numpy(ids.astype(np.int64))[None],
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, 9:]
    assert sample.token_ids.tolist() == expected.tolist()
    np.testing.assert_allclose(sample.logprobs, forward_logprobs(model, ids, sample), atol=1e-4)


def test_a_group_reads_its_prompt_once(make_llama):
    engine = TorchEngine(make_llama(), max_sequences=8)
    engine.submit(Request("g", prompt(np.random.default_rng(0), 25), 8, SamplingParams(max_tokens=5)))
    samples = finish(engine)["g"]
    assert engine.stats.prompt_tokens == 25
    assert len({tuple(s.token_ids) for s in samples}) > 1


def test_a_group_larger_than_the_batch_reads_its_prompt_once(make_llama):
    engine = TorchEngine(make_llama(), max_sequences=3)
    engine.submit(Request("g", prompt(np.random.default_rng(0), 25), 8, SamplingParams(max_tokens=5)))
    assert len(finish(engine)["g"]) == 8
    assert engine.stats.prompt_tokens == 25


@pytest.mark.parametrize("engine_seed", [0, 5])
def test_a_seeded_request_draws_the_same_whatever_shares_the_batch(make_llama, engine_seed):
    rng = np.random.default_rng(0)
    ids, others = prompt(rng, 11), [prompt(rng, k) for k in (3, 30, 17)]
    sampling = SamplingParams(max_tokens=15, seed=7)
    alone = TorchEngine(make_llama(), max_sequences=8)
    alone.submit(Request("x", ids, 2, sampling))
    crowded = TorchEngine(make_llama(), max_sequences=8, seed=engine_seed)
    for index, other in enumerate(others):
        crowded.submit(Request(str(index), other, 2, SamplingParams(max_tokens=9 + index)))
    crowded.submit(Request("x", ids, 2, sampling))
    first, second = finish(alone)["x"], finish(crowded)["x"]
    assert [s.token_ids.tolist() for s in first] == [s.token_ids.tolist() for s in second]
    assert first[0].token_ids.tolist() != first[1].token_ids.tolist()


def test_the_same_engine_seed_repeats_a_run_and_another_does_not(make_llama):
    def run(seed: int) -> list[list[int]]:
        engine, rng = TorchEngine(make_llama(), max_sequences=4, seed=seed), np.random.default_rng(0)
        for index in range(6):
            engine.submit(Request(str(index), prompt(rng, 5 + index), 2, SamplingParams(max_tokens=8)))
        return [s.token_ids.tolist() for _, samples in sorted(finish(engine).items()) for s in samples]

    assert run(3) == run(3) != run(4)


def test_a_sample_ends_with_its_stop_token(make_llama):
    engine = TorchEngine(make_llama(), max_sequences=8)
    sampling = SamplingParams(max_tokens=100, stop_token_ids=tuple(range(0, 48, 2)))
    engine.submit(Request("a", np.array([1, 2, 3], np.int32), 8, sampling))
    for sample in finish(engine)["a"]:
        assert sample.finish_reason == "stop"
        assert [t % 2 for t in sample.token_ids] == [1] * (len(sample.token_ids) - 1) + [0]


def test_a_finished_sample_leaves_at_once_and_its_row_is_refilled(make_llama):
    engine = TorchEngine(make_llama(), max_sequences=1)
    for name, length in (("a", 2), ("b", 1), ("c", 3)):
        engine.submit(Request(name, np.array([1], np.int32), 1, SamplingParams(max_tokens=length)))
    finish(engine)
    assert engine.stats.steps == 2 + 1 + 3


def test_a_deadline_ends_running_samples_with_what_they_have_and_waiting_ones_with_nothing(make_llama):
    clock = Clock()
    engine = TorchEngine(make_llama(), max_sequences=2, clock=clock)
    engine.submit(Request("a", np.array([1, 2], np.int32), 3, SamplingParams(max_tokens=50), deadline_s=10.0))
    for now in (1.0, 2.0, 3.0):
        clock.now = now
        assert engine.step() == []
    clock.now = 10.0
    (done,) = engine.step()
    assert [len(s.token_ids) for s in done.samples] == [3, 3, 0]
    assert [s.finish_reason for s in done.samples] == ["deadline"] * 3
    assert [s.first_token_s for s in done.samples] == [1.0, 1.0, None]
    assert engine.idle
    assert engine.n_running == engine.n_waiting == 0


def test_a_cancelled_request_comes_back_with_what_it_has(make_llama):
    engine = TorchEngine(make_llama(), max_sequences=4)
    engine.submit(Request("a", np.array([1, 2], np.int32), 2, SamplingParams(max_tokens=50)))
    engine.submit(Request("b", np.array([3], np.int32), 2, SamplingParams(max_tokens=6)))
    engine.step()
    engine.step()
    engine.cancel("a")
    engine.cancel("never heard of")
    (done,) = engine.step()
    assert done.request_id == "a"
    assert [(len(s.token_ids), s.finish_reason) for s in done.samples] == [(2, "cancelled")] * 2
    assert [len(s.token_ids) for s in finish(engine)["b"]] == [6, 6]


def test_what_was_read_for_a_cancelled_request_serves_no_other(make_llama):
    model, rng = make_llama(), np.random.default_rng(4)
    engine = TorchEngine(model, max_sequences=2)
    first, second = prompt(rng, 12), prompt(rng, 9)
    engine.submit(Request("a", first, 5, SamplingParams(max_tokens=4)))
    engine.submit(Request("b", second, 1, SamplingParams(max_tokens=4)))
    engine.step()
    engine.cancel("a")
    (sample,) = finish(engine)["b"]
    np.testing.assert_allclose(sample.logprobs, forward_logprobs(model, second, sample), atol=1e-4)


def test_a_prompt_beyond_the_context_is_refused_with_its_lengths(make_llama):
    engine = TorchEngine(make_llama(), max_sequences=2)
    with pytest.raises(PromptTooLong, match=r"prompt of 100 tokens and max_tokens 29 make 129; the context holds 128"):
        engine.submit(Request("a", np.zeros(100, np.int32), 1, SamplingParams(max_tokens=29)))
    engine.submit(Request("a", np.zeros(100, np.int32), 1, SamplingParams(max_tokens=28)))
    assert len(finish(engine)["a"][0].token_ids) == 28


@pytest.mark.parametrize(
    ("ids", "n", "says"),
    [([], 1, "0 prompt tokens"), ([1], 0, "n = 0"), ([48], 1, r"0\.\.47"), ([-1], 1, r"0\.\.47")],
)
def test_a_request_that_can_never_run_is_refused(make_llama, ids, n, says):
    engine = TorchEngine(make_llama(), max_sequences=2)
    with pytest.raises(EngineError, match=says):
        engine.submit(Request("a", np.array(ids, np.int32), n, SamplingParams(max_tokens=2)))
    assert engine.idle


def test_an_id_in_use_is_refused(make_llama):
    engine = TorchEngine(make_llama(), max_sequences=2)
    engine.submit(Request("a", np.array([1], np.int32), 1, SamplingParams(max_tokens=2)))
    with pytest.raises(EngineError, match="request a: a request with this id"):
        engine.submit(Request("a", np.array([1], np.int32), 1, SamplingParams(max_tokens=2)))


def test_long_requests_share_a_small_kv_budget_in_turn(make_llama):
    model, rng = make_llama(), np.random.default_rng(2)
    engine = TorchEngine(model, max_sequences=16, kv_tokens=256)
    requests = {str(k): Request(str(k), prompt(rng, 20 + 15 * k), 4, SamplingParams(max_tokens=12)) for k in range(6)}
    for request in requests.values():
        engine.submit(request)
    largest = 0
    out: dict[str, list[Sample]] = {}
    while not engine.idle:
        out.update({done.request_id: done.samples for done in engine.step()})
        largest = max(largest, engine.kv_allocated_tokens)
    assert 0 < largest <= 256
    for name, samples in out.items():
        for sample in samples:
            expected = forward_logprobs(model, requests[name].prompt_ids, sample)
            np.testing.assert_allclose(sample.logprobs, expected, atol=1e-4)


def test_logits_that_are_not_finite_are_an_error_and_not_a_sample(make_llama):
    model = make_llama()
    engine = TorchEngine(model, max_sequences=2)
    engine.submit(Request("a", np.array([1, 2], np.int32), 1, SamplingParams(max_tokens=9)))
    engine.step()
    state = {k: torch.full_like(v, float("nan")) for k, v in model.state_dict().items()}
    engine.load_weights(state, epoch=0, version=4)
    with pytest.raises(EngineError, match=r"weights 0\.4: the logits are not finite"):
        engine.step()


requests_drawn = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 15), min_size=1, max_size=12),
        "n": st.integers(1, 5),
        "max_tokens": st.integers(1, 12),
        "temperature": st.sampled_from([0.0, 0.5, 1.0]),
        "top_p": st.sampled_from([0.5, 1.0]),
        "top_k": st.sampled_from([0, 3]),
        "stop": st.lists(st.integers(0, 15), max_size=3),
        "deadline": st.one_of(st.none(), st.integers(0, 30)),
    }
)
actions_drawn = st.lists(
    st.one_of(
        requests_drawn,
        st.tuples(st.just("cancel"), st.integers(0, 6)),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("swap"), st.booleans()),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=actions_drawn, rows=st.integers(1, 5), kv_tokens=st.integers(24, 150), fast=st.booleans())
def test_every_request_completes_exactly_once_and_rightly_whatever_happens(make_llama, actions, rows, kv_tokens, fast):
    model, clock = make_llama(hidden=16, layers=1, vocabulary=16), Clock()
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    engine = TorchEngine(model, max_sequences=rows, kv_tokens=kv_tokens, clock=clock, fast=fast, band_bytes=1)
    submitted: dict[str, Request] = {}
    completed: dict[str, list[Sample]] = {}

    def step() -> None:
        clock.now += 1.0
        for done in engine.step():
            assert done.request_id not in completed
            completed[done.request_id] = done.samples
        assert engine.n_running <= rows
        assert engine.kv_allocated_tokens <= kv_tokens

    for action in actions:
        if isinstance(action, dict):
            name = str(len(submitted))
            sampling = SamplingParams(
                action["max_tokens"], action["temperature"], action["top_p"], action["top_k"], tuple(action["stop"])
            )
            ids = np.array(action["prompt"], np.int32)
            submitted[name] = Request(name, ids, action["n"], sampling, action["deadline"])
            engine.submit(submitted[name])
        elif action[0] == "cancel":
            engine.cancel(str(action[1]))
        elif action[0] == "swap":
            engine.load_weights(weights, engine.epoch + action[1], engine.version + 1)
        else:
            for _ in range(action[1]):
                step()
    steps = 0
    while not engine.idle:
        step()
        steps += 1
        assert steps < 1000
    assert completed.keys() == submitted.keys()
    assert engine.n_running == engine.n_waiting == 0
    for name, samples in completed.items():
        request = submitted[name]
        assert len(samples) == request.n
        for sample in samples:
            check_sample(request.sampling, sample)
            if (request.sampling.top_p, request.sampling.top_k) == (1.0, 0) and len(sample.token_ids):
                temperature = request.sampling.temperature or 1.0
                expected = forward_logprobs(model, request.prompt_ids, sample, temperature)
                np.testing.assert_allclose(sample.logprobs, expected, atol=1e-4)


def check_sample(sampling: SamplingParams, sample: Sample) -> None:
    count = len(sample.token_ids)
    assert len(sample.logprobs) == len(sample.versions) == count <= sampling.max_tokens
    assert (np.diff(sample.versions) >= 0).all()
    assert (sample.logprobs <= 0).all()
    assert not np.isin(sample.token_ids[:-1], sampling.stop_token_ids).any()
    stopped = count > 0 and int(sample.token_ids[-1]) in sampling.stop_token_ids
    assert (sample.finish_reason == "stop") == stopped
    if sample.finish_reason == "length":
        assert count == sampling.max_tokens
