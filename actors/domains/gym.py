"""reasoning-gym datasets as domains: prompts and scoring stay the package's own, only the size is chosen here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from actors.domains.domain import Domain, Problem
from actors.domains.errors import BadSourceOption, MissingPackage
from messages.task import VerifierSpec

_INDEX_BITS = 40


@dataclass(frozen=True)
class Sizing:
    """How large a dataset's problems are at each level, and the fixed text around them."""

    levels: tuple[Mapping[str, Any], ...]
    phrases: tuple[str, ...]


_SUM_ASKED = "State the final answer to the following arithmetic problem: "
_SORTING_RULES = (
    "\nPlease follow the instruction below:\n## 1. Let all your answers be a list of numbers. Instead of reporting "
    "your answer as -69, -13, 1, 7, 11, 43, 59, 61, use ['-69', '-13', '1', '7', '11', '43', '59', '61'] instead\n"
    "## 2. Convert all numbers in the square brackets as strings. For example, ['-69', '-13', '1', '7', '11', '43', "
    "'59', '61']\n"
)
_WORDS_ASKED = (
    "Your task is to sort words in ascending or descending order using ASCII/Unicode ordering.\n\nYour output should "
    "be a comma-separated list of words, e.g. word_1, word_2, word_3\n\nNow, sort these words in "
)
_WORDS_RULE = " order (using ASCII/Unicode ordering) and return them as a comma-separated list: "
_PALINDROME_ASKED = (
    "Your task is, given a list of letters, to form a valid palindrome.\n\nA palindrome is a phrase that reads the "
    "same forwards and backwards.\n\nIf there are multiple possible answers, only respond with one of them. You must "
    "use all the letters provided.\n\nYour output should be a single string, with no spaces or punctuation.\n\nNow, "
    "form a valid palindrome using the following letters: "
)
_ROTATION_ASKED = (
    "Given a square matrix, your job is to rotate it clockwise.\n\nYour output should be a matrix in the same format "
    "as the input.\n\nRotate the matrix below by "
)
_LEGS_ASKED = (
    "Your task is to count how many legs there are in total when given a list of animals.\n\nNow, how many legs are "
    "there in total if you have "
)
_INSERTION_ASKED = (
    "Given a string consisting of characters A, B, C, D, and E, your job is to insert a character according to the "
    "following pattern:\n"
    + "".join(
        f"{number}. If there is a substring {found} in the string, "
        f"insert the character {found[0]} after the substring.\n"
        for number, found in enumerate(("ABCD", "BCDE", "CDEA", "DEAB", "EABC"), start=1)
    )
    + "\nOnce you have inserted a character, you have to skip over the substring and the inserted character and "
    "continue the search from the next character.\n\nYour output should be a string that has been modified according "
    "to the pattern.\n\nGiven the following string, provide the answer after inserting the characters according to "
    "the pattern: "
)
_SPIRAL_ASKED = (
    "Given a matrix, your job is to generate a list of elements in spiral order, starting from the top-left element."
    "\n\nThe spiral order is clockwise, starting from the top-left corner. More precisely:\n- Start from the top-left "
    "corner and move right along the top row.\n- Move down along the right column.\n- Move left along the bottom row."
    "\n- Move up along the left column.\n- Repeat the steps for the inner elements of the matrix until every entry is "
    "visited.\n\nHint: Think of peeling the matrix layer by layer from the outside inward. Each layer forms a "
    "rectangular frame, and you traverse each frame clockwise starting from its top-left corner.\n\nYour output should "
    "be a space-separated list of integers, e.g. 1 2 3 4 5 6\n\nFor the matrix below, what is the list of elements in "
    "spiral order?\n"
)

SIZINGS: Mapping[str, Sizing] = {
    "chain_sum": Sizing(
        levels=(
            {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1},
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
        ),
        phrases=(_SUM_ASKED, " + ", " - ", " ="),
    ),
    "basic_arithmetic": Sizing(
        levels=tuple(
            {
                "min_terms": 2,
                "max_terms": 3 + level,
                "max_digits": 1,
                "operators": ("+", "-"),
                "allow_parentheses": False,
                "allow_negation": False,
            }
            for level in range(2)
        ),
        phrases=("Calculate ",),
    ),
    "spell_backward": Sizing(
        levels=({"min_word_len": 3, "max_word_len": 5}, {"min_word_len": 6, "max_word_len": 7}),
        phrases=("Spell this word backward (example: sun -> nus): ",),
    ),
    "word_sorting": Sizing(
        levels=tuple(
            {"min_words": 3, "max_words": 3 + level, "min_word_length": 3, "max_word_length": 3} for level in range(2)
        ),
        phrases=(_WORDS_ASKED, _WORDS_RULE, "ascending", "descending", ", "),
    ),
    "number_sorting": Sizing(
        levels=tuple(
            {
                "min_numbers": 3,
                "max_numbers": 3 + level,
                "min_decimals": 0,
                "max_decimals": 0,
                "min_value": 0,
                "max_value": 99,
            }
            for level in range(2)
        ),
        phrases=(
            *("Sort these numbers in ascending order: ", "Sort these numbers in descending order: "),
            *(_SORTING_RULES, ".0, ", ".0" + _SORTING_RULES, "['", ".0', '", ".0']"),
        ),
    ),
    "number_filtering": Sizing(
        levels=tuple(
            {
                "min_numbers": 3,
                "max_numbers": 3 + level,
                "min_decimals": 0,
                "max_decimals": 0,
                "min_value": 0,
                "max_value": 99,
            }
            for level in range(2)
        ),
        phrases=(
            *("Keep all numbers larger than ", "Keep all numbers smaller than "),
            *("Remove all numbers larger than ", "Remove all numbers smaller than "),
            *(" in this list: ['", "', '", "']", "\nReturn the new list in the same format."),
            "']\nReturn the new list in the same format.",
        ),
    ),
    "palindrome_generation": Sizing(
        levels=({"min_length": 3, "max_length": 6}, {"min_length": 6, "max_length": 8}),
        phrases=(_PALINDROME_ASKED, ", "),
    ),
    "rotate_matrix": Sizing(
        levels=tuple({"min_n": 2, "max_n": 2 + level, "min_rotations": 1, "max_rotations": 3} for level in range(2)),
        phrases=(_ROTATION_ASKED, *(f"{angle} degrees clockwise:\n" for angle in (90, 180, 270))),
    ),
    "simple_equations": Sizing(
        levels=tuple(
            {
                "min_terms": 2,
                "max_terms": 2,
                "min_value": 1,
                "max_value": 10 * (1 + 4 * level),
                "operators": ("+", "-"),
                "operators_weights": [0.5, 0.5],
            }
            for level in range(2)
        ),
        phrases=(
            *("Find the value of ", " in the equation: ", "Solve for ", "Determine the value of "),
            *(" that satisfies: ", " = "),
        ),
    ),
    "leg_counting": Sizing(
        levels=tuple(
            {"min_animals": 1, "max_animals": 1 + level, "min_instances": 1, "max_instances": 40} for level in range(2)
        ),
        phrases=(_LEGS_ASKED, "s?\n"),
    ),
    "string_insertion": Sizing(
        levels=({"min_string_length": 5, "max_string_length": 6}, {"min_string_length": 7, "max_string_length": 9}),
        phrases=(_INSERTION_ASKED,),
    ),
    "spiral_matrix": Sizing(levels=({"min_n": 2, "max_n": 2}, {"min_n": 3, "max_n": 3}), phrases=(_SPIRAL_ASKED,)),
}


class GymDataset(Domain):
    """One dataset of reasoning-gym, under its own name."""

    n_levels: ClassVar[int] = 2

    def __init__(self, name: str) -> None:
        """Choose a dataset.

        Raises:
            BadSourceOption: no sizing is known for this dataset.
            MissingPackage: reasoning-gym is not installed.
        """
        if name not in SIZINGS:
            raise BadSourceOption(f"reasoning-gym dataset {name!r} has no sizing here, use one of {', '.join(SIZINGS)}")
        try:
            import reasoning_gym
        except ImportError as missing:
            raise MissingPackage(f"dataset {name!r} needs reasoning-gym: pip install 'busrl[domains]'") from missing
        self.name = name
        self.phrases = SIZINGS[name].phrases
        self._datasets = [reasoning_gym.create_dataset(name, seed=0, **sizes) for sizes in SIZINGS[name].levels]

    def problem(self, rng: Random, level: int) -> Problem:
        """Draw the entry of a random index; what scoring it needs travels in the verifier's options."""
        entry = self._datasets[level][rng.getrandbits(_INDEX_BITS)]
        metadata = _plain(entry["metadata"])
        return Problem(
            prompt=entry["question"],
            answer=entry["answer"],
            verifier=VerifierSpec(
                kind="reasoning_gym",
                options={"dataset": self.name, "answer": entry["answer"], "metadata": metadata},
            ),
        )


def _plain(value: Any) -> Any:
    """Return ``value`` with tuples as lists and other objects as text, as JSON would carry it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
