"""Numeric accepts what is mathematically equal, refuses the rest, and is not stopped by numbers nobody can compute."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verifier_samples import task

from actors.verifiers import build
from actors.verifiers.errors import BadReference
from actors.verifiers.numeric import extract, last_boxed, plain_number


def score(answer: str, response: str, **options: object) -> float:
    made = task("numeric", answer, **options)
    return build(made).check(made, response).pass_rate


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("5", " 5.0\n"),
        ("1,234", "1234"),
        ("0.5", "1/2"),
        ("1e5", "100000"),
        ("-3", "\N{MINUS SIGN}3"),
        ("\\frac12", "0.5"),
        ("1/3", "0.333333"),
        ("x^2+2x+1", "(x+1)^2"),
        ("\\{1,2\\}", "\\{2,1\\}"),
        ("5", "x=5"),
        ("50%", "0.5"),
        ("1024", "2^{10}"),
    ],
)
def test_equal_mathematics_passes(answer, response):
    assert score(answer, response) == 1.0


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("5", "-5"),
        ("5", ""),
        ("5", "((((("),
        ("5", "5 6 7"),
        ("5", "\\infty"),
        ("5", "1/0"),
        ("1/3", "0.33"),
        ("x", "y"),
    ],
)
def test_other_mathematics_fails(answer, response):
    assert score(answer, response) == 0.0


@pytest.mark.parametrize(
    "response",
    [
        "9^{9^{9^9}}",
        "10^{100000000}",
        "\\frac{1}{9^{9^9}}",
        "2^{-9^{9^9}}",
        "(1000000!)!",
        "\\binom{10^9}{5*10^8}",
        "(" * 5000 + "5" + ")" * 5000,
        "9" * 100_000,
    ],
)
@pytest.mark.timeout(20)
def test_a_number_that_nobody_can_compute_is_wrong_at_once(response):
    assert score("5", response) == 0.0


@pytest.mark.parametrize(
    ("response", "found"),
    [
        ("7 apples and 35 make 42.", "42"),
        ("10-42", "42"),
        ("x = -42", "-42"),
        ("about 1,234.5 m", "1,234.5"),
        ("it is 3/4", "3/4"),
        ("v1.2.3", None),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text_is_found(response, found):
    assert extract("last_number", response) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{1} and \\boxed{ 2 }", "2"),
        ("\\boxed{1} and \\boxed{2", "1"),
        ("1", None),
    ],
)
def test_the_last_balanced_box_is_found(text, found):
    assert last_boxed(text) == found


def test_tolerance_is_an_absolute_difference():
    assert score("3.14", "3.145", tolerance=0.01) == 1.0
    assert score("3.14", "\\pi", tolerance=0.01) == 1.0
    assert score("3.14", "3.16", tolerance=0.01) == 0.0


def test_an_answer_in_the_task_that_is_no_mathematics_is_an_error_and_not_a_reward():
    with pytest.raises(BadReference, match="numeric-task"):
        score("(((", "x+1")


@given(st.fractions(max_denominator=10**6))
def test_plain_numbers_are_read_exactly(value):
    assert plain_number(f"{value.numerator}/{value.denominator}") == value
    assert plain_number(f"{value.numerator:,}") == Fraction(value.numerator)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_pass_exactly_when_they_are_equal(one, other):
    assert score(str(one), str(other)) == float(one == other)


@given(st.text(max_size=200))
def test_extraction_takes_any_text(text):
    for extraction in ("whole", "boxed", "last_number"):
        extract(extraction, text)
