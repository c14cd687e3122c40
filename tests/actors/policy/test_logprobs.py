"""Log-probs agree with a plain forward pass, whatever the padding, the temperature and the chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from actors.policy.logprobs import ScoredSequence, UnscorableSequence, micro_batches, pad, token_logprobs

CPU = torch.device("cpu")


def sequence(rng: np.random.Generator, prompt: int, response: int, temperature: float = 1.0) -> ScoredSequence:
    ids = rng.integers(0, 48, prompt + response).astype(np.int32)
    scored = np.arange(ids.size) >= prompt
    scored[prompt:] &= rng.random(response) < 0.8
    return ScoredSequence(ids, scored, temperature)


def plain(model, seq: ScoredSequence) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence, the whole vocabulary, float64: slow and obvious."""
    logits = model(torch.from_numpy(seq.ids.astype(np.int64))[None]).logits[0].double() / seq.temperature
    probabilities = logits.exp() / logits.exp().sum(-1, keepdim=True)
    places = np.flatnonzero(seq.scored)
    logprobs = torch.stack([probabilities[p - 1, int(seq.ids[p])].log() for p in places])
    entropies = torch.stack([-(probabilities[p - 1] * probabilities[p - 1].log()).sum() for p in places])
    return logprobs, entropies


@pytest.fixture
def batch() -> list[ScoredSequence]:
    rng = np.random.default_rng(0)
    return [sequence(rng, 3, 9, 1.0), sequence(rng, 12, 4, 0.7), sequence(rng, 1, 20, 1.3)]


def test_log_probs_and_entropies_of_a_padded_batch_equal_those_of_each_sequence_alone(make_llama, batch):
    model = make_llama()
    logprobs, entropies = token_logprobs(model, pad(batch, CPU))
    expected = [plain(model, seq) for seq in batch]
    torch.testing.assert_close(logprobs.double(), torch.cat([e[0] for e in expected]), atol=2e-5, rtol=0)
    torch.testing.assert_close(entropies.double(), torch.cat([e[1] for e in expected]), atol=2e-5, rtol=0)


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_scoring_in_chunks_changes_neither_values_nor_gradients(make_llama, batch, rows):
    model = make_llama()
    results = []
    for chunk_bytes in (1 << 30, rows * 4 * 48):
        model.zero_grad()
        logprobs, entropies = token_logprobs(model, pad(batch, CPU), chunk_bytes=chunk_bytes)
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        results.append((logprobs.detach(), entropies, [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])
    for whole, chunked in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=1e-4)


def test_tied_embeddings_are_scored_through_the_shared_head(make_llama, batch):
    model = make_llama(tie_word_embeddings=True)
    logprobs, _ = token_logprobs(model, pad(batch, CPU))
    torch.testing.assert_close(logprobs.double(), torch.cat([plain(model, s)[0] for s in batch]), atol=2e-5, rtol=0)


def test_a_model_that_rescales_its_logits_is_scored_with_the_rescaling(make_llama, batch):
    from transformers import GraniteConfig, GraniteForCausalLM

    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, logits_scaling=4.0, initializer_range=0.3,
    )  # fmt: skip
    model = GraniteForCausalLM(config).eval()
    logprobs, _ = token_logprobs(model, pad(batch, CPU))
    torch.testing.assert_close(logprobs.double(), torch.cat([plain(model, s)[0] for s in batch]), atol=2e-5, rtol=0)


def test_the_first_token_of_a_sequence_can_not_be_scored():
    with pytest.raises(UnscorableSequence, match="first token"):
        ScoredSequence(np.array([1, 2], np.int32), np.array([True, True]))


def test_a_greedy_sample_has_no_distribution_to_score():
    with pytest.raises(UnscorableSequence, match="temperature 0"):
        ScoredSequence(np.array([1, 2], np.int32), np.array([False, True]), 0.0)


lengths = st.lists(st.integers(1, 300), max_size=60)
allowances = st.none() | st.integers(0, 500)


@given(lengths, st.integers(1, 2000), allowances)
def test_micro_batches_cover_every_sequence_once(sizes, budget, padding):
    taken = [i for part in micro_batches(sizes, budget, padding) for i in part]
    assert sorted(taken) == list(range(len(sizes)))


@given(lengths, st.integers(1, 2000), allowances)
def test_no_micro_batch_of_several_sequences_exceeds_its_padded_tokens(sizes, budget, padding):
    for part in micro_batches(sizes, budget, padding):
        assert len(part) == 1 or len(part) * max(sizes[i] for i in part) <= budget


@given(lengths, st.integers(1, 2000), st.integers(0, 500))
def test_no_micro_batch_holds_more_padding_than_it_may(sizes, budget, padding):
    for part in micro_batches(sizes, budget, padding):
        assert len(part) * max(sizes[i] for i in part) - sum(sizes[i] for i in part) <= padding


@given(lengths, st.integers(1, 2000), allowances)
def test_micro_batches_go_from_long_to_short(sizes, budget, padding):
    taken = [sizes[i] for part in micro_batches(sizes, budget, padding) for i in part]
    assert taken == sorted(taken, reverse=True)


@given(st.integers(1, 300), st.integers(1, 60))
def test_sequences_of_one_length_fill_micro_batches_to_the_budget(size, n):
    parts = list(micro_batches([size] * n, 600, 0))
    assert all(len(part) == 600 // size for part in parts[:-1])
