"""Demonstrations: pairs for SFT come without end, from train tasks only, and noise is a share of wrong answers."""

from itertools import islice

import pytest

from actors.domains.demonstrations import demonstrations
from actors.domains.errors import BadSourceOption
from actors.domains.split import split_of
from actors.domains.strings import OPERATIONS


def test_the_same_seed_gives_the_same_pairs():
    one, two = (list(islice(demonstrations(4, noise=0.5), 100)) for _ in range(2))
    assert one == two


def test_no_prompt_is_held_out():
    assert all(split_of(prompt) == "train" for prompt, _ in islice(demonstrations(0), 500))


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_noise_is_the_share_of_wrong_responses(noise):
    pairs = list(islice(demonstrations(9, source="strings", noise=noise), 1000))
    wrong = 0
    for prompt, response in pairs:
        operation, word = prompt.strip().split(": ")
        wrong += response != OPERATIONS[operation](word)
    assert abs(wrong / len(pairs) - noise) < 0.06


def test_a_domain_is_shown_as_often_as_its_share_says():
    shares = {"strings": 3.0, "arithmetic": 0.0}
    prompts = [prompt for prompt, _ in islice(demonstrations(1, shares=shares), 3000)]
    shown = sum(prompt.split(":")[0] in OPERATIONS for prompt in prompts) / len(prompts)
    assert abs(shown - 3 / 16) < 0.03
    assert not any(prompt.startswith("Compute ") for prompt in prompts)


def test_lessons_look_up_every_key_and_tasks_three():
    for share, low, high in ((1.0, 4, 14), (0.0, 3, 3)):
        for prompt, _ in islice(demonstrations(2, source="retrieval", lessons=share), 50):
            queries = prompt.partition("look up ")[2].removesuffix(":")
            assert low <= len(queries) <= high


def test_a_share_for_an_unknown_domain_is_refused():
    with pytest.raises(BadSourceOption, match="has no domain 'art'"):
        next(demonstrations(0, shares={"art": 1.0}))
