"""The board shows what matters at 80 and at 120 columns, and fits; the log line has the same figures."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from runtime.board import View, board, log_fields
from runtime.facts import Facts
from tests.runtime.sample_run import NOW_S, beat, busy_run, evaluation

VIEW = View("demo", NOW_S, 754, 120, 2, "training", "nats://127.0.0.1:4222", {"generator-1": 3}, "Ctrl-C drains")


def drawn(facts: Facts, width: int, height: int = 60, view: View = VIEW) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(board(facts, view, width, height))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal_or_wraps(width: int):
    lines = drawn(busy_run(), width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 21


@pytest.mark.parametrize("width", [80, 120])
def test_every_actor_domain_and_queue_is_there(width: int):
    text = "\n".join(drawn(busy_run(), width))
    for word in ("version 40/120", "generator-1", "silent", "arithmetic", "0.31 → 0.62", "mean", "turns 12"):
        assert word in text
    assert "closes  2048 = 1024 trained + 512 dropped + 16 dead + 496 open" in text
    assert "1.00 now, 1.00 mean, 2 max, bound 2" in text


def test_a_wide_terminal_shows_more():
    assert "no_signal 16" in "\n".join(drawn(busy_run(), 120))
    assert "no_signal 16" not in "\n".join(drawn(busy_run(), 80))


def test_restarts_of_an_actor_are_shown():
    line = next(line for line in drawn(busy_run(), 80) if line.startswith("generator-1"))
    assert line.split()[-1] == "3"


def test_a_ledger_that_does_not_close_can_not_be_overlooked():
    facts = busy_run()
    facts.on(beat("curriculum-0", gauges={"dispatched": 10, "trained": 1}, sent_s=NOW_S + 1))
    assert "DOES NOT CLOSE" in "\n".join(drawn(facts, 80))


def test_domains_that_do_not_fit_are_counted():
    facts = busy_run()
    for number in range(30):
        facts.on(evaluation(f"domain-{number:02}", 0, 0.1, 0.2))
    lines = drawn(facts, 80, height=30)
    assert any("more" in line for line in lines)
    assert len(lines) <= 30


def test_before_the_first_word_the_board_is_a_headline():
    assert drawn(Facts(), 80)[0].startswith("busrl demo  training  version 0/120")


def test_actors_stand_in_the_order_of_the_pipeline():
    names = [line.split()[0] for line in drawn(busy_run(), 80) if "-0" in line.split(" ")[0]]
    kinds = ["curriculum", "generator", "verifier", "reward", "replay", "learner", "evaluator"]
    assert names == [f"{kind}-0" for kind in kinds]


def test_the_log_line_has_the_figures_of_the_board():
    fields = log_fields(busy_run(), VIEW)
    assert fields["version"] == 40
    assert fields["law_closes"] is True
    assert fields["evaluation"] == {"arithmetic": 0.62, "gym-letter-counting-and-more": 0.62}
    assert fields["generator_tokens_per_s"] == 24_690
