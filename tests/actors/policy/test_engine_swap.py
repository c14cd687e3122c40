"""New weights between two decode steps, with sequences in flight."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from actors.policy.engine import EngineError, Request, Sample, SamplingParams, TorchEngine


def weights_of(model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def swapped_run(engine: TorchEngine, request: Request, weights, after: int) -> list[Sample]:
    engine.submit(request)
    for _ in range(after):
        assert engine.step() == []
    engine.load_weights(weights, epoch=1, version=8)
    while True:
        done = engine.step()
        if done:
            return done[0].samples


def mixed_logprobs(old, new, ids: np.ndarray, sample: Sample, after: int) -> np.ndarray:
    """Tokens before the swap by the old model; then the new model goes on over the old model's keys and values."""
    tokens = torch.from_numpy(np.concatenate([ids, sample.token_ids]).astype(np.int64))[None]
    fed = len(ids) + after - 1
    cache = DynamicCache()
    with torch.no_grad():
        before = old(input_ids=tokens[:, :fed], past_key_values=cache, use_cache=True).logits[0, len(ids) - 1 :]
        later = new(input_ids=tokens[:, fed:-1], past_key_values=cache, use_cache=True).logits[0]
    logprobs = torch.log_softmax(torch.cat([before, later]), -1)
    return logprobs.gather(-1, tokens[0, len(ids) :, None])[:, 0].numpy()


@pytest.mark.parametrize("fast", [True, False])
def test_tokens_after_a_swap_are_the_new_weights_on_the_kept_kv(make_llama, fast):
    old, new = make_llama(1), make_llama(2)
    ids = np.arange(1, 12, dtype=np.int32)
    engine = TorchEngine(make_llama(1), max_sequences=4, epoch=1, version=7, fast=fast)
    request = Request("a", ids, 3, SamplingParams(max_tokens=16))
    for sample in swapped_run(engine, request, weights_of(new), after=6):
        assert sample.versions.tolist() == [7] * 6 + [8] * 10
        np.testing.assert_allclose(sample.logprobs, mixed_logprobs(old, new, ids, sample, 6), atol=1e-4)


def test_the_kept_kv_is_really_the_old_one(make_llama):
    new = make_llama(2)
    ids = np.arange(1, 12, dtype=np.int32)
    engine = TorchEngine(make_llama(1), max_sequences=4, version=7)
    (sample,) = swapped_run(engine, Request("a", ids, 1, SamplingParams(max_tokens=16)), weights_of(new), after=6)
    fresh = mixed_logprobs(new, new, ids, sample, 6)
    assert np.abs(sample.logprobs[6:] - fresh[6:]).max() > 1e-2


def test_a_sample_carries_the_epoch_of_its_oldest_token(make_llama):
    engine = TorchEngine(make_llama(), max_sequences=1, epoch=1, version=3)
    for name in "ab":
        engine.submit(Request(name, np.array([1], np.int32), 1, SamplingParams(max_tokens=4)))
    engine.step()
    engine.load_weights(weights_of(make_llama()), epoch=2, version=1)
    epochs = {}
    while not engine.idle:
        epochs.update({done.request_id: done.samples[0].epoch for done in engine.step()})
    assert epochs == {"a": 1, "b": 2}


@pytest.mark.parametrize("fast", [True, False])
def test_after_a_swap_everything_new_equals_a_fresh_engine(make_llama, fast):
    def run(engine: TorchEngine) -> Sample:
        engine.submit(Request("a", np.arange(9, dtype=np.int32), 1, SamplingParams(max_tokens=12, seed=5)))
        while True:
            done = engine.step()
            if done:
                return done[0].samples[0]

    swapped, fresh = TorchEngine(make_llama(1), fast=fast), TorchEngine(make_llama(2), fast=fast)
    run(swapped)
    swapped.load_weights(weights_of(make_llama(2)), 0, 1)
    one, other = run(swapped), run(fresh)
    assert one.token_ids.tolist() == other.token_ids.tolist()
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-6)


def test_samples_that_wait_for_a_row_are_read_anew_with_the_new_weights(make_llama):
    new, ids = make_llama(2), np.arange(1, 9, dtype=np.int32)
    engine = TorchEngine(make_llama(1), max_sequences=2, version=0)
    samples = swapped_run(engine, Request("a", ids, 4, SamplingParams(max_tokens=5)), weights_of(new), after=2)
    for sample in samples[2:]:
        assert sample.versions.tolist() == [8] * 5
        np.testing.assert_allclose(sample.logprobs, mixed_logprobs(new, new, ids, sample, 2), atol=1e-4)


def test_weights_that_do_not_fit_are_named_and_nothing_changes(make_llama):
    model = make_llama(1)
    engine = TorchEngine(model, max_sequences=2, epoch=3, version=5)
    before, wrong = weights_of(model), weights_of(make_llama(2))
    del wrong["model.norm.weight"]
    wrong["model.extra"] = torch.zeros(1)
    wrong["lm_head.weight"] = torch.zeros(3, 3)
    with pytest.raises(EngineError) as caught:
        engine.load_weights(wrong, epoch=4, version=6)
    for part in (
        "missing: model.norm.weight",
        "unexpected: model.extra",
        "lm_head.weight is [3, 3], should be [48, 64]",
    ):
        assert part in str(caught.value)
    assert (engine.epoch, engine.version) == (3, 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("names", ["both", "embedding", "head"])
def test_tied_weights_may_come_under_either_name(make_llama, names):
    model, new = make_llama(1, tie_word_embeddings=True), make_llama(2, tie_word_embeddings=True)
    weights = weights_of(new)
    dropped = {"both": None, "embedding": "lm_head.weight", "head": "model.embed_tokens.weight"}[names]
    weights.pop(dropped, None)
    engine = TorchEngine(model, max_sequences=2)
    engine.load_weights(weights, 0, 1)
    assert torch.equal(model.lm_head.weight, new.lm_head.weight)
    assert torch.equal(model.model.embed_tokens.weight, new.model.embed_tokens.weight)
