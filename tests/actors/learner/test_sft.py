"""SFT learns, is reproducible, runs its stages, and says which line or pair it can not use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.learner.pairs import PairError, read_pairs
from actors.learner.sft import run_sft
from actors.learner.sft_config import SftConfig
from actors.policy.model import PromptEncodingError, load_policy
from tests.actors.learner import demonstrations

HERE = "tests.actors.learner.demonstrations"


def config(tmp_path: Path, **settings) -> SftConfig:
    plain = {
        "policy": f"{HERE}:build",
        "out": tmp_path / "out",
        "steps": 12,
        "batch_size": 8,
        "warmup_steps": 2,
        "device": "cpu",
    }
    if "files" not in settings:
        plain["generator"] = f"{HERE}:copies"
    return SftConfig.model_validate({**plain, **settings})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_policy(folder, "cpu").named_tensors()


def greedy(folder: Path, prompt: str, n: int) -> str:
    policy = load_policy(folder, "cpu")
    ids = list(policy.encode([{"role": "user", "content": prompt}]))
    for _ in range(n):
        ids.append(int(policy.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return policy.decode(ids)[len(prompt) :]


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_policy_learns_the_pairs_and_to_stop(tmp_path, optimizer):
    result = run_sft(config(tmp_path, steps=150, lr=2e-2, optimizer=optimizer, batch_size=16))
    assert result.losses[-1] < 0.1 < result.losses[0]
    assert greedy(result.folder, "say c:", 3) == "cc"


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path, optimizer):
    folders = [
        run_sft(config(tmp_path, out=tmp_path / name, seed=seed, optimizer=optimizer)).folder
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    a, b, c = map(weights, folders)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_the_loss_is_the_mean_over_response_tokens_however_it_is_split(tmp_path):
    runs = [run_sft(config(tmp_path, steps=3, micro_batch_tokens=tokens)).losses for tokens in (1, 10_000)]
    assert runs[0] == pytest.approx(runs[1], rel=1e-4)


def test_every_stage_calls_the_generator_with_its_own_options_and_seed(tmp_path):
    demonstrations.seen.clear()
    stages = [{"fraction": 0.75}, {"fraction": 0.25, "options": {"times": 3}}]
    run_sft(config(tmp_path, stages=stages, options={"times": 1}))
    assert [options for _, options in demonstrations.seen] == [{"times": 1}, {"times": 3}]
    assert len({seed for seed, _ in demonstrations.seen}) == 2


def test_progress_hears_of_every_step_in_its_stage(tmp_path):
    heard = []
    run_sft(config(tmp_path, steps=None, stages=[{"steps": 4}, {"steps": 2}], schedule="constant"), heard.append)
    assert [(p.step, p.stage) for p in heard] == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1)]
    assert all(p.tokens_per_s > 0 for p in heard)


def test_a_second_run_goes_on_from_the_folder_of_the_first(tmp_path):
    first = run_sft(config(tmp_path, steps=60, lr=2e-2))
    second = run_sft(config(tmp_path, policy=str(first.folder), out=tmp_path / "second", steps=3, lr=1e-4))
    assert second.losses[0] < 0.5 * first.losses[0]


def test_a_folder_can_be_trained_onto_itself(tmp_path):
    first = run_sft(config(tmp_path, steps=3))
    assert run_sft(config(tmp_path, policy=str(first.folder), steps=3)).folder == first.folder


LINES = [
    '{"prompt": "2+2=", "response": "4"}',
    "",
    "not json",
    '{"prompt": "x"}',
    '["a", "b"]',
    '{"prompt": "3+3=", "response": 6}',
    '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},'
    ' {"role": "user", "content": "again"}, {"role": "assistant", "content": "yo yo"}]}',
    '{"messages": [{"role": "user", "content": "hi"}]}',
]


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(LINES))
    return path


def test_bad_lines_are_rejected_with_their_number_and_good_ones_kept(file):
    pairs, rejected = read_pairs([file])
    assert [line.number for line in rejected] == [3, 4, 5, 6, 8]
    assert [pair.response for pair in pairs] == ["4", "yo", "yo yo"]
    assert str(rejected[1]).startswith(f"{file}:4: 'response' is missing")


def test_every_assistant_message_is_learnt_after_what_stands_before_it(file):
    pairs, _ = read_pairs([file])
    assert [m["content"] for m in pairs[2].messages] == ["hi", "yo", "again"]


def test_sft_from_files_reports_the_lines_it_left_out(file, tmp_path):
    result = run_sft(config(tmp_path, files=[file], steps=3))
    assert [line.number for line in result.rejected_lines] == [3, 4, 5, 6, 8]
    assert np.isfinite(result.losses).all()


def test_a_file_without_a_single_pair_is_an_error_that_shows_the_first_fault(tmp_path):
    (tmp_path / "bad.jsonl").write_text('\n{"text": 1}\n')
    with pytest.raises(PairError, match=r"bad\.jsonl:2: 'prompt' is missing"):
        run_sft(config(tmp_path, files=[tmp_path / "bad.jsonl"]))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PairError, match=r"nowhere\.jsonl: No such file"):
        run_sft(config(tmp_path, files=[tmp_path / "nowhere.jsonl"]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"generator": "no.such.module:f"}, "there is no module no"),
        ({"generator": f"{HERE}:absent"}, "has no absent"),
        ({"generator": f"{HERE}:seen"}, "not a function"),
        ({"generator": f"{HERE}:two"}, "ended at step 0 of 12"),
        ({"generator": f"{HERE}:two", "options": {"noise": 1}}, "noise"),
        ({"generator": f"{HERE}:crooked"}, "item 1 is not a pair"),
        ({"max_tokens": 5}, "longer than 5 tokens"),
    ],
)
def test_a_source_that_can_not_be_used_is_one_clear_line(tmp_path, settings, said):
    with pytest.raises(PairError, match=said) as caught:
        run_sft(config(tmp_path, **settings))
    assert "\n" not in str(caught.value)


def test_pairs_beyond_the_context_are_skipped_and_counted(tmp_path):
    lines = [{"prompt": "short", "response": "yes"}, {"prompt": "x" * 200, "response": "no"}]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = run_sft(config(tmp_path, files=[tmp_path / "mixed.jsonl"], steps=3))
    assert result.skipped_pairs > 0
    assert result.tokens == 3 * 8 * len("shortyes_")


def test_a_prompt_that_can_not_be_encoded_is_named(tmp_path):
    (tmp_path / "odd.jsonl").write_text(json.dumps({"prompt": "Привет", "response": "a"}))
    with pytest.raises(PromptEncodingError, match=r"no token for '\w'"):
        run_sft(config(tmp_path, files=[tmp_path / "odd.jsonl"]))
