"""Wrong answers that look right: a noisy demonstrator keeps a policy's samples apart, which is what RL learns from."""

from __future__ import annotations

import re
import string
from random import Random

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WHOLE_NUMBER = re.compile(r"-?\d+")
_SEPARATORS = ("', '", ", ")
_TRIES = 20


def plausible_mistake(answer: str, rng: Random) -> str:
    """Return something like ``answer`` that differs from it: a slip in a number, a list's order, or a letter."""
    for _ in range(_TRIES):
        wrong = _slip(answer, rng)
        if wrong != answer:
            return wrong
    return answer + "0"


def _slip(answer: str, rng: Random) -> str:
    for separator in _SEPARATORS:
        if separator in answer:
            return _slip_in_list(answer, separator, rng)
    numbers = list(_NUMBER.finditer(answer))
    if numbers:
        found = rng.choice(numbers)
        return answer[: found.start()] + _slip_in_number(found.group(), rng) + answer[found.end() :]
    return _slip_in_letters(answer, rng)


def _slip_in_list(answer: str, separator: str, rng: Random) -> str:
    opening, closing = ("['", "']") if answer.startswith("['") else ("", "")
    items = answer.removeprefix(opening).removesuffix(closing).split(separator)
    kind = rng.random()
    if kind < 0.6:
        i, j = rng.sample(range(len(items)), 2)
        items[i], items[j] = items[j], items[i]
    elif kind < 0.8:
        items.pop(rng.randrange(len(items)))
    else:
        i = rng.randrange(len(items))
        items[i] = _slip(items[i], rng)
    return opening + separator.join(items) + closing


def _slip_in_number(number: str, rng: Random) -> str:
    if _WHOLE_NUMBER.fullmatch(number) and rng.random() < 0.5:
        return str(int(number) + rng.choice((-10, -2, -1, 1, 2, 10)))
    places = [i for i, character in enumerate(number) if character.isdigit()]
    place = rng.choice(places)
    digit = (int(number[place]) + rng.choice((-2, -1, 1, 2))) % 10
    return number[:place] + str(digit) + number[place + 1 :]


def _slip_in_letters(text: str, rng: Random) -> str:
    if not text:
        return rng.choice(string.ascii_lowercase)
    place = rng.randrange(len(text))
    kind = rng.random()
    if kind < 0.5 and len(text) > 1:
        place = min(place, len(text) - 2)
        return text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    if kind < 0.65 and len(text) > 1:
        return text[:place] + text[place + 1 :]
    alphabet = string.ascii_uppercase if text[place].isupper() else string.ascii_lowercase
    return text[:place] + rng.choice(alphabet) + text[place + 1 :]
