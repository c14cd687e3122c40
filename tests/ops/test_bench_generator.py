"""The generator benchmark on a handful of prompts: its shape, not its figures."""

from __future__ import annotations

import pytest

from ops.bench.generator import main, run

pytest.importorskip("torch")


def test_both_sides_are_measured_on_the_same_useful_tokens():
    result = run(n_prompts=6, batch=4, max_sequences=4, median=3, longest=6, rounds=1)
    assert set(result["cases"]) == {"log-normal", "equal"}
    assert result["cases"]["equal"]["useful_tokens"] == 6 * 6
    for case in result["cases"].values():
        assert case["ratio"] == pytest.approx(case["engine_tokens_per_s"] / case["generate_tokens_per_s"])


def test_the_command_prints_a_line_per_case(capsys):
    main(["--prompts", "4", "--batch", "4", "--max-sequences", "2", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0.89M parameters, 4 prompts, 1 thread(s)")
    assert [line.split()[0] for line in lines[1:]] == ["lengths", "log-normal", "equal"]
