"""Small random policies that the engine's tests decode with."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def random_llama(seed: int = 0, *, hidden: int = 64, layers: int = 2, vocabulary: int = 48, **more) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    config = LlamaConfig(
        **{
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": vocabulary,
            "max_position_embeddings": 128,
            "tie_word_embeddings": False,
            "initializer_range": 0.15,
            **more,
        }
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def make_llama():
    return random_llama
