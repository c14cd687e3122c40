"""When a process is restarted and when the run is given up: policy without processes, with an injected time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.restarts import Ended, GiveUp, Restart, Restarts, how_it_ended


def history(**options) -> Restarts:
    return Restarts("generator-0", rng=random.Random(1), **options)


def test_a_process_that_was_told_to_end_is_left_alone():
    assert history().ended(0, now_s=1.0) == Ended()


def test_bad_input_is_given_up_at_once_with_its_own_words():
    assert history().ended(2, 1.0, "policy.path: there is no folder x") == GiveUp(
        2, "generator-0: policy.path: there is no folder x"
    )


@pytest.mark.parametrize("code", [1, 3, 137, -9, -11])
def test_a_crash_is_restarted_after_a_delay(code: int):
    decision = history().ended(code, 1.0)
    assert isinstance(decision, Restart)
    assert decision.after_s > 0


def test_crashes_close_together_are_a_crash_loop():
    restarts = history(windows=((3, 10.0),))
    assert isinstance(restarts.ended(1, 0.0), Restart)
    assert isinstance(restarts.ended(1, 1.0), Restart)
    decision = restarts.ended(-9, 2.0, "out of memory")
    assert decision == GiveUp(
        1, "generator-0 is in a crash loop (3 crashes within 10 s, last killed by SIGKILL): out of memory"
    )


def test_crashes_far_apart_are_never_a_crash_loop():
    restarts = history(windows=((2, 10.0),))
    assert all(isinstance(restarts.ended(1, 11.0 * i), Restart) for i in range(50))


def test_delays_grow_with_recent_crashes_and_shrink_again_after_peace():
    restarts = history(windows=((100, 60.0),))
    delays = [restarts.ended(1, float(i)) for i in range(6)]
    assert all(isinstance(delay, Restart) for delay in delays)
    assert delays[-1].after_s > 4 * delays[0].after_s
    assert restarts.ended(1, 1000.0).after_s <= restarts.backoff.first_s


@given(times=st.lists(st.floats(0, 1e4), min_size=1, max_size=60), limit=st.integers(2, 6), within=st.floats(0.1, 1e3))
def test_the_run_is_given_up_exactly_when_the_limit_falls_into_one_window(times, limit, within):
    restarts = history(windows=((limit, within),))
    seen = []
    for now in sorted(times):
        seen.append(now)
        recent = [at for at in seen if now - at < within]
        decision = restarts.ended(1, now)
        assert isinstance(decision, GiveUp) is (len(recent) >= limit)
        if isinstance(decision, GiveUp):
            return


def test_slow_crashes_without_end_are_a_crash_loop_too():
    restarts = history(windows=((5, 60.0), (8, 600.0)))
    decisions = [restarts.ended(1, 20.0 * i) for i in range(8)]
    assert all(isinstance(decision, Restart) for decision in decisions[:7])
    assert decisions[7] == GiveUp(1, "generator-0 is in a crash loop (8 crashes within 600 s, last exit code 1)")


def test_ends_are_told_in_words():
    assert how_it_ended(3) == "exit code 3"
    assert how_it_ended(-9) == "killed by SIGKILL"
    assert how_it_ended(-63) == "killed by signal 63"
