"""The learner's and SFT's settings: described, free of torch, and refused when they mean nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from actors.learner.config import CheckpointConfig, LearnerConfig
from actors.learner.sft_config import SftConfig, SftStage


@pytest.mark.parametrize("module", ["actors.learner.config", "actors.learner.sft_config", "actors.reward.advantage"])
def test_reading_the_settings_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("model", [LearnerConfig, CheckpointConfig, SftConfig, SftStage])
def test_every_field_is_described(model):
    assert not [name for name, field in model.model_fields.items() if not field.description]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning_rate": 1e-3}, "learning_rate"),
        ({"total_steps": 10}, "no effect with schedule = constant"),
        ({"schedule": "cosine"}, "needs total_steps"),
        ({"schedule": "linear", "total_steps": 5, "warmup_steps": 5}, "leaves nothing"),
        ({"clip_low": 0.1}, "no effect with epochs_per_batch = 1"),
        ({"clip_high": 0.3}, "no effect with epochs_per_batch = 1"),
        ({"dual_clip": None}, "no effect with epochs_per_batch = 1"),
        ({"epochs_per_batch": 2, "dual_clip": 1.1}, "must be above"),
        ({"importance_cap": None, "over_cap": "truncate"}, "no effect without importance_cap"),
        ({"importance_cap": 0.9}, "drops every on-policy token"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"lr": 0}, "greater than 0"),
        ({"dtype": "float16"}, "float32"),
        ({"checkpoint": {"every": 5}}, "every"),
    ],
)
def test_learner_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        LearnerConfig.model_validate(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epochs_per_batch": 2, "clip_low": 0.1, "dual_clip": None},
        {"importance_cap": 0.8, "over_cap": "truncate"},
        {"schedule": "cosine", "total_steps": 100},
    ],
)
def test_resolved_settings_can_be_read_again(settings):
    config = LearnerConfig.model_validate(settings)
    assert LearnerConfig.model_validate_json(config.model_dump_json()) == config


def sft(**settings) -> SftConfig:
    return SftConfig.model_validate({"policy": "a.b:c", "out": "out", "generator": "m:f", "steps": 200, **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"generator": None}, "exactly one of files"),
        ({"files": ["a.jsonl"]}, "exactly one of files"),
        ({"generator": None, "files": ["a.jsonl"], "options": {"noise": 1}}, "options belong to a generator"),
        ({"generator": "no colon"}, "match pattern"),
        ({"policy": "not a: path"}, "neither a folder nor"),
        ({"steps": None}, "steps is missing"),
        ({"stages": [{"steps": 10}, {"fraction": 0.5}]}, "mix steps and fraction"),
        ({"stages": [{"fraction": 0.5}, {"fraction": 0.4}]}, "sum to 0.9"),
        ({"stages": [{"steps": 10}]}, "leave out steps"),
        ({"stages": [{"steps": 10, "fraction": 1}]}, "exactly one of steps and fraction"),
        ({"warmup_steps": 200}, "leaves nothing"),
        ({"epochs": 3}, "epochs"),
    ],
)
def test_sft_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        sft(**settings)


def test_fractions_become_steps_that_sum_to_the_whole():
    stages = [{"fraction": 1 / 3}, {"fraction": 1 / 3}, {"fraction": 1 / 3, "options": {"noise": 0.5}}]
    plan = sft(stages=stages, options={"level": 1}).plan()
    assert [steps for steps, _ in plan] == [67, 66, 67]
    assert [options for _, options in plan] == [{"level": 1}, {"level": 1}, {"level": 1, "noise": 0.5}]


def test_stages_of_given_length_need_no_total():
    assert sft(steps=None, stages=[{"steps": 80}, {"steps": 20}]).total_steps == 100
