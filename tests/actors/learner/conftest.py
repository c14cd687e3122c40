"""A small policy, and batches that were really sampled from it, for the learner's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from actors.learner.sample import TrainSample
from actors.policy.logprobs import ScoredSequence, pad, token_logprobs
from actors.policy.model import Policy, wrap_policy
from actors.policy.tiny import tiny_tokenizer


def small_policy(seed: int = 0, *, hidden: int = 16, phrases: tuple[str, ...] = ()) -> Policy:
    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer(phrases)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=96, tie_word_embeddings=False, eos_token_id=1,
        pad_token_id=0, bos_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(seed)
    return wrap_policy(LlamaForCausalLM(config), tokenizer, Path("small"))


def write_small_policy(folder: Path, seed: int) -> None:
    small_policy(seed).export(folder)


def sampled(policy: Policy, n: int, seed: int = 0, version: int = 0) -> list[TrainSample]:
    """Random tokens with the log-probs that ``policy`` gives them, and advantages of both signs."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(n):
        prompt = rng.integers(3, 90, rng.integers(1, 12)).astype(np.int32)
        response = rng.integers(3, 90, rng.integers(2, 30)).astype(np.int32)
        ids = np.concatenate((prompt, response))
        scored = np.arange(ids.size) >= prompt.size
        with torch.no_grad():
            logprobs, _ = token_logprobs(policy.model, pad([ScoredSequence(ids, scored)], torch.device("cpu")))
        samples.append(
            TrainSample(
                id=f"r{i}",
                prompt_ids=prompt,
                token_ids=response,
                loss_mask=(rng.random(response.size) < 0.9).astype(np.uint8),
                logprobs=logprobs.numpy(),
                advantage=float(rng.normal()),
                versions=np.full(response.size, version, np.int32),
            )
        )
    return samples


@pytest.fixture
def policy() -> Policy:
    return small_policy()


@pytest.fixture
def make_policy():
    return small_policy


@pytest.fixture
def make_samples():
    return sampled
