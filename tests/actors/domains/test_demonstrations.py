"""Demonstrations: pairs for SFT come without end, from train tasks only, and noise is a share of wrong answers."""

from itertools import islice

import pytest

from actors.domains.demonstrations import demonstrations
from actors.domains.registry import open_source
from actors.domains.split import split_of


def test_the_same_seed_gives_the_same_pairs():
    one, two = (list(islice(demonstrations(4, noise=0.5), 100)) for _ in range(2))
    assert one == two


def test_no_prompt_is_held_out():
    assert all(split_of(prompt) == "train" for prompt, _ in islice(demonstrations(0), 500))


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_noise_is_the_share_of_wrong_responses(noise):
    right = {task.messages[0].content: task.answer for task in open_source("strings").tasks(1000, 9, "train")}
    pairs = list(islice(demonstrations(9, source="strings", noise=noise), 1000))
    wrong = sum(response != right[prompt] for prompt, response in pairs) / len(pairs)
    assert abs(wrong - noise) < 0.06
