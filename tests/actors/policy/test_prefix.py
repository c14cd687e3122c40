"""A prompt that is read once gives what reading it for every sample gives: values, entropies and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from actors.policy import prefix
from actors.policy.logprobs import ScoredSequence, token_logprobs
from actors.policy.prefix import (
    MAX_TREE_TOKENS,
    WORTHWHILE,
    ancestor_mask,
    joining_pays,
    row_cost,
    sequence_batches,
    takes_trees,
)

VOCABULARY = 12


def llama(make_llama, attention: str = "sdpa"):
    return make_llama(hidden=16, vocabulary=VOCABULARY, attn_implementation=attention)


def gpt2(_=None, attention: str = "sdpa"):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=24, n_embd=16, n_layer=2, n_head=2, initializer_range=0.2,
        attn_implementation=attention, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def qwen2(_=None, attention: str = "sdpa"):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, attn_implementation=attention,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


@st.composite
def groups(draw, most_groups: int = 3) -> list[ScoredSequence]:
    """Groups of one prompt and some responses over few tokens, so that responses also begin alike; shuffled."""
    token = st.integers(0, 3)
    sequences = []
    for _ in range(draw(st.integers(1, most_groups))):
        prompt = draw(st.lists(token, min_size=1, max_size=12))
        for _ in range(draw(st.integers(1, 6))):
            response = draw(st.lists(token, max_size=8))
            scored = [False] * len(prompt) + draw(
                st.lists(st.booleans(), min_size=len(response), max_size=len(response))
            )
            temperature = draw(st.sampled_from([1.0, 0.5, 1.7]))
            ids = np.asarray(prompt + response, dtype=np.int32)
            sequences.append(ScoredSequence(ids, np.asarray(scored, dtype=np.bool_), temperature))
    order = draw(st.permutations(range(len(sequences))))
    return [sequences[i] for i in order]


def scored_with_gradient(model, sequences, share, budget=10_000):
    """Log-probs and entropies in the order of ``sequences``, and the gradient of a sum with uneven weights."""
    model.zero_grad()
    weights = np.random.default_rng(0).normal(size=(len(sequences), 64))
    values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    masked = False
    for batch in sequence_batches(sequences, budget, model, share):
        logprobs, entropy = token_logprobs(model, batch.padded)
        masked |= batch.padded.mask is not None
        sizes = [int(sequences[i].scored.sum()) for i in batch.indices]
        weight = np.concatenate([weights[i, :n] for i, n in zip(batch.indices, sizes, strict=True)])
        (logprobs * torch.from_numpy(weight).to(logprobs.dtype)).sum().backward()
        parts = zip(batch.indices, logprobs.detach().split(sizes), entropy.split(sizes), strict=True)
        values |= {i: (part, of) for i, part, of in parts}
    assert sorted(values) == list(range(len(sequences)))
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return (
        torch.cat([values[i][0] for i in sorted(values)]),
        torch.cat([values[i][1] for i in sorted(values)]),
        gradients,
        masked,
    )


def assert_same(model, sequences, tolerance, budget=10_000) -> bool:
    plain = scored_with_gradient(model, sequences, False)
    shared = scored_with_gradient(model, sequences, True, budget)
    for expected, found in [*zip(plain[:2], shared[:2], strict=True), *zip(plain[2], shared[2], strict=True)]:
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    return shared[3]


def in_float64(model):
    """The model in float64 throughout: transformers' RMS norms round to float32 inside."""
    model.double()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                exact = torch.nn.RMSNorm(child.weight.shape, child.variance_epsilon, dtype=torch.float64)
                exact.weight = child.weight
                setattr(module, name, exact)
    return model


@pytest.mark.parametrize(
    ("family", "attention", "tolerance"),
    [
        (llama, "sdpa", 1e-10),
        (gpt2, "sdpa", 1e-10),
        (gpt2, "eager", 1e-10),
        (qwen2, "sdpa", 1e-10),
        pytest.param(llama, "eager", 1e-5, id="llama-eager-whose-softmax-is-float32"),
    ],
)
def test_reading_a_prompt_once_changes_neither_values_nor_gradients(make_llama, family, attention, tolerance):
    model = in_float64(family(make_llama, attention))
    shared_rows = []

    @settings(max_examples=15, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(groups(), st.sampled_from([1, 20, 40, 10_000]))
    def holds(sequences, budget):
        shared_rows.append(assert_same(model, sequences, tolerance, budget))

    holds()
    assert any(shared_rows), "some batch had something to share"


@pytest.mark.parametrize("family", [llama, gpt2])
def test_in_float32_they_agree_to_rounding(make_llama, family):
    model = family(make_llama)

    @settings(max_examples=10, deadline=None, derandomize=True, database=None)
    @given(groups())
    def holds(sequences):
        plain, shared = (scored_with_gradient(model, sequences, share) for share in (False, True))
        torch.testing.assert_close(shared[0], plain[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(shared[1], plain[1], rtol=0, atol=1e-5)
        for expected, found in zip(plain[2], shared[2], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(expected.abs().max())))

    holds()


def group(prompt: int, responses: list[int], seed: int = 0) -> list[ScoredSequence]:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, VOCABULARY, prompt)
    sequences = []
    for n in responses:
        ids = np.concatenate((start, rng.integers(0, VOCABULARY, n))).astype(np.int32)
        sequences.append(ScoredSequence(ids, np.arange(ids.size) >= prompt))
    return sequences


@pytest.mark.parametrize(
    "sequences",
    [
        pytest.param(group(1, [3, 3, 3]), id="a prompt of one token"),
        pytest.param(group(9, [4]), id="a group of one"),
        pytest.param(group(9, [0, 5, 0, 4]), id="empty responses"),
        pytest.param(group(9, [1, 1, 1, 1]), id="responses of one token"),
        pytest.param(group(9, [4]) * 5, id="the same response five times"),
        pytest.param(group(14, [6] * 30), id="more positions in a row than the model has"),
    ],
)
def test_groups_at_the_edge_are_scored_as_their_sequences_are(sequences):
    assert_same(gpt2().double(), sequences, 1e-10)


def test_a_token_that_is_not_scored_is_still_seen_by_those_behind_it():
    model = gpt2().double()
    first, second = group(9, [4, 4])
    unscored = [ScoredSequence(s.ids, s.scored & (np.arange(s.ids.size) != 10)) for s in (first, second)]
    assert assert_same(model, unscored, 1e-10)
    changed = first.ids.copy()
    changed[10] = (changed[10] + 1) % VOCABULARY
    other = [ScoredSequence(changed, unscored[0].scored), unscored[1]]
    before, after = (scored_with_gradient(model, batch, True)[0] for batch in (unscored, other))
    assert not torch.allclose(before[1:3], after[1:3])
    torch.testing.assert_close(before[3:], after[3:])


def test_a_prompt_and_what_responses_share_are_read_once():
    sequences = group(20, [5] * 16)
    (batch,) = sequence_batches(sequences, 10_000, gpt2(), share=True)
    distinct = {tuple(s.ids[:n]) for s in sequences for n in range(1, s.ids.size)}
    assert batch.padded.ids.shape == (1, len(distinct))


def test_a_group_too_large_for_the_budget_is_split_into_rows_that_keep_to_it():
    sequences = group(20, [8] * 40)
    batches = sequence_batches(sequences, 100, gpt2(), share=True)
    assert len(batches) > 1
    assert all(batch.padded.ids.numel() <= 100 for batch in batches)
    assert sorted(i for batch in batches for i in batch.indices) == list(range(40))


def test_sequences_that_share_nothing_stand_in_plain_rows_without_a_mask():
    rng = np.random.default_rng(0)
    ids = [np.append(first, rng.integers(0, VOCABULARY, 12)).astype(np.int32) for first in range(VOCABULARY)]
    sequences = [ScoredSequence(one, np.arange(13) > 3) for one in ids]
    (batch,) = sequence_batches(sequences, 10_000, gpt2(), share=True)
    assert batch.padded.ids.shape == (VOCABULARY, 12)
    assert batch.padded.mask is None


@given(st.integers(0, 500), st.integers(0, 4000), st.integers(1, 4000), st.booleans())
def test_joining_never_costs_more_than_a_row_of_its_own(shared, row, own, branches):
    row += shared
    if joining_pays(row, branches, shared + own, shared):
        joined = row_cost(row + own, branching=True)
        assert joined <= row_cost(row, branches) + WORTHWHILE * row_cost(shared + own, branching=False)


@pytest.mark.parametrize(
    ("row", "tokens", "shared", "pays"),
    [
        pytest.param(66, 66, 60, True, id="short responses to a long prompt"),
        pytest.param(1000, 66, 60, True, id="also as the hundredth of its group"),
        pytest.param(50, 50, 1, False, id="a first token in common is not worth a mask"),
        pytest.param(1100, 1100, 100, False, id="long responses: attention outgrows what is shared"),
    ],
)
def test_rows_are_shared_where_it_is_cheaper(row, tokens, shared, pays):
    assert joining_pays(row, True, tokens, shared) is pays


def test_a_row_with_a_mask_is_never_longer_than_the_mask_may_be():
    sequences = group(1500, [2] * 600)
    for batch in sequence_batches(sequences, 100_000, gpt2(), share=True):
        assert batch.padded.mask is None or batch.padded.ids.shape[1] <= MAX_TREE_TOKENS


def test_every_token_sees_its_ancestors_and_padding_sees_itself():
    ends = torch.tensor([[5, 3, 3, 5, 5, 6, 7]])  # 0 -> (1 -> 2), (3 -> 4); two places of padding
    seen = [np.flatnonzero(row).tolist() for row in (ancestor_mask(ends, torch.float32)[0, 0] == 0).numpy()]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4], [5], [6]]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [llama, gpt2, qwen2])
def test_the_usual_families_take_trees(make_llama, family, attention):
    assert takes_trees(family(make_llama, attention))


def test_a_model_that_places_tokens_by_distance_in_the_row_is_given_plain_rows():
    torch.manual_seed(0)
    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=2, initializer_range=0.2)
    assert not takes_trees(BloomForCausalLM(config).eval())


def test_a_model_with_a_sliding_window_is_given_plain_rows():
    config = MistralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=4096,
    )  # fmt: skip
    assert not takes_trees(MistralForCausalLM(config).eval())


def test_a_model_that_ignores_the_mask_is_found_out(make_llama, monkeypatch):
    model = llama(make_llama)
    monkeypatch.setattr(
        prefix, "ancestor_mask", lambda ends, dtype: torch.zeros(1, 1, *ends.shape[1:] * 2, dtype=dtype)
    )
    assert not takes_trees(model)
