"""The fast decoder against the generic one, and both against the model's own forward pass, family by family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from actors.policy.decoder import GenericDecoder, decoder_for
from actors.policy.engine import Request, Sample, SamplingParams, TorchEngine, UnsupportedModel
from actors.policy.llama_decoder import LlamaDecoder

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAST = {
    "llama": ("llama", {}),
    "llama without grouped heads": ("llama", {"num_key_value_heads": 4}),
    "llama with biases, tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama with scaled rotation": ("llama", {"rope_parameters": ROPE_LLAMA3}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
}
GENERIC_ONLY = {
    "mistral with a sliding window": ("mistral", {"sliding_window": 8, "head_dim": 16}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "gpt_neox": ("gpt_neox", {}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "olmo2": ("olmo2", {}),
    "llama whose rotation follows the length": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    ),
}


def build(kind: str, more: dict):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"vocab_size": 48, "initializer_range": 0.15, **more} if kind == "gpt2" else {**SMALL, **more}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def run(model, fast: bool | None) -> dict[str, tuple[np.ndarray, list[Sample]]]:
    engine, rng = TorchEngine(model, max_sequences=5, fast=fast), np.random.default_rng(0)
    prompts = {str(k): rng.integers(0, 48, int(rng.integers(1, 40))).astype(np.int32) for k in range(5)}
    for name, ids in prompts.items():
        engine.submit(Request(name, ids, 2, SamplingParams(max_tokens=6 + 3 * int(name), seed=int(name))))
    out = {}
    while not engine.idle:
        out.update({done.request_id: (prompts[done.request_id], done.samples) for done in engine.step()})
    return out


def worst_difference(model, out) -> float:
    """Largest gap between a returned log-prob and the plain forward pass's."""
    worst = 0.0
    for ids, samples in out.values():
        for sample in samples:
            tokens = torch.from_numpy(np.concatenate([ids, sample.token_ids]).astype(np.int64))[None]
            with torch.no_grad():
                logprobs = torch.log_softmax(model(input_ids=tokens).logits[0, len(ids) - 1 : -1].float(), -1)
            expected = logprobs.gather(-1, tokens[0, len(ids) :, None])[:, 0].numpy()
            worst = max(worst, float(np.abs(expected - sample.logprobs).max()))
    return worst


@pytest.mark.parametrize("name", FAST)
def test_the_fast_decoder_draws_what_the_generic_one_draws(name):
    generic, fast = run(build(*FAST[name]), False), run(build(*FAST[name]), True)
    for key, (_, samples) in generic.items():
        for one, other in zip(samples, fast[key][1], strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=5e-5)


@pytest.mark.parametrize("name", FAST)
def test_the_fast_decoder_agrees_with_the_plain_forward_pass(name):
    reference = build(*FAST[name])
    assert isinstance(decoder_for(build(*FAST[name])), LlamaDecoder)
    assert worst_difference(reference, run(build(*FAST[name]), True)) < 1e-4


@pytest.mark.parametrize("name", GENERIC_ONLY)
def test_other_models_run_through_their_own_forward(name):
    model = build(*GENERIC_ONLY[name])
    assert isinstance(decoder_for(model), GenericDecoder)
    assert worst_difference(model, run(model, None)) < 1e-4


def test_the_model_itself_still_computes_the_same_after_its_projections_were_fused():
    model, ids = build("qwen3", {"head_dim": 32}), torch.arange(20)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        LlamaDecoder(model)
        assert torch.equal(model(input_ids=ids).logits, before)


def test_bfloat16_samples_with_logprobs_near_the_models_own():
    model = build(*FAST["llama"]).to(torch.bfloat16)
    assert worst_difference(model, run(model, True)) < 0.2


def test_a_fast_path_that_is_demanded_and_missing_is_an_error():
    with pytest.raises(UnsupportedModel, match="GPT2LMHeadModel has no fast decoder"):
        decoder_for(build(*GENERIC_ONLY["gpt2"]), fast=True)


def test_a_recurrent_model_is_refused():
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 48, "state_size": 4}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **shape))
    with pytest.raises(UnsupportedModel, match="recurrent state"):
        decoder_for(model)
