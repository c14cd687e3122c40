"""The distribution that tokens are drawn from, and the draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.policy.sampling import RowSampling, SamplingParams, draw, sample_key, uniforms


def settings_of(n: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> RowSampling:
    return RowSampling.of(
        np.full(n, temperature, np.float32), np.full(n, top_k), np.full(n, top_p, np.float32), torch.device("cpu")
    )


def spread(n: int) -> torch.Tensor:
    """n uniforms that cover [0, 1) evenly."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Probabilities by the definition, in float64, one vocabulary."""
    scaled = logits.astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    order = np.argsort(-scaled, kind="stable")
    if top_k:
        probs[order[top_k:]] = 0
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[(before >= top_p) & (np.arange(len(order)) > 0)]] = 0
    return probs / probs.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.0, 3, 1.0), (1.3, 0, 0.7), (0.8, 5, 0.6)]
)
def test_frequencies_and_logprobs_are_those_of_the_truncated_distribution(temperature, top_k, top_p):
    logits = np.random.default_rng(3).normal(0, 1.5, 12).astype(np.float32)
    n = 20_000
    ids, logprobs = draw(torch.from_numpy(logits).expand(n, -1), settings_of(n, temperature, top_k, top_p), spread(n))
    expected = reference(logits, temperature, top_k, top_p)
    np.testing.assert_allclose(np.bincount(ids.numpy(), minlength=12) / n, expected, atol=2 / n + 1e-6)
    np.testing.assert_allclose(logprobs.numpy(), np.log(expected[ids.numpy()]), atol=1e-5)


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=20),
    top_k=st.integers(0, 25),
    top_p=st.floats(0.01, 1.0),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_a_token_of_no_probability_is_never_drawn(logits, top_k, top_p, uniform):
    row = torch.tensor([logits])
    ids, logprobs = draw(row, settings_of(1, 1.0, top_k, top_p), torch.tensor([uniform], dtype=torch.float64))
    assert torch.isfinite(logprobs).all()
    assert (logprobs <= 0).all()
    if top_k:
        assert int((row[0] > row[0, ids]).sum()) < top_k


def test_greedy_takes_the_likeliest_token_and_reports_the_models_own_logprob():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    rows = RowSampling.of(
        np.array([0.0, 1.0], np.float32), np.array([2, 0]), np.ones(2, np.float32), torch.device("cpu")
    )
    ids, logprobs = draw(logits, rows, torch.tensor([0.999, 0.999], dtype=torch.float64))
    assert ids.tolist() == [1, 2]
    assert torch.allclose(logprobs, torch.log_softmax(logits, -1)[[0, 1], [1, 2]])


def test_uniforms_are_uniform_and_differ_by_key_and_position():
    keys = np.array([sample_key(1, k) for k in range(200)], np.uint64)
    table = np.stack([uniforms(keys, np.full(200, position)) for position in range(100)])
    assert len(np.unique(table)) == table.size
    assert table.min() >= 0
    assert table.max() < 1
    counts = np.histogram(table, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square, 19 degrees of freedom, p < 0.001
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
    ],
)
def test_settings_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{"max_tokens": 1, field: value})
