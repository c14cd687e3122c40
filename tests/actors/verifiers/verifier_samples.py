"""Functions that a user could name in a task, most of them bad: check processes import this module by its name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from messages import ChatMessage, Task, VerifierSpec


def task(kind: str, answer: str | None = "42", prompt: str = "6*7=", **options: object) -> Task:
    return Task(
        id=f"{kind}-task",
        domain="sums",
        messages=(ChatMessage(role="user", content=prompt),),
        verifier=VerifierSpec(kind=kind, options=options),
        answer=answer,
    )


def python(name: str, answer: str | None = "42") -> Task:
    return task("python", answer, function=f"verifier_samples:{name}")


def half(task: Task, response: str) -> float:
    return 0.5


def yes(task: Task, response: str) -> bool:
    return True


def two_objectives(task: Task, response: str) -> dict[str, float]:
    return {"correct": float(response == task.answer), "short": 1.0}


def without_correct(task: Task, response: str) -> dict[str, float]:
    return {"style": 1.0}


def nan(task: Task, response: str) -> float:
    return float("nan")


def two(task: Task, response: str) -> float:
    return 2.0


def nothing(task: Task, response: str) -> None:
    return None


async def asynchronous(task: Task, response: str) -> float:
    return 1.0


def talkative(task: Task, response: str) -> float:
    print("this must not disturb the protocol")
    os.write(1, b"\x04\x00\x00\x00\x00\x00\x00\x00")
    return 1.0


def does_what_it_is_told(task: Task, response: str) -> float:
    """``raise``, ``exit``, ``die``, ``hang``, ``spin``, ``eat``; anything else is right if it is the answer."""
    if response == "raise":
        raise RuntimeError("told to raise")
    if response == "exit":
        sys.exit(0)
    if response == "die":
        os._exit(3)
    if response == "hang":
        time.sleep(600)
    if response == "spin":
        re.fullmatch(r"(a+)+b", "a" * 60)
    if response == "eat":
        bytearray(1 << 40)
    return float(response == task.answer)


def fails_once(task: Task, response: str) -> float:
    """Dies the first time, for each file named in the response."""
    marker = Path(response)
    if not marker.exists():
        marker.touch()
        os._exit(3)
    return 1.0


def leaves_a_child(task: Task, response: str) -> float:
    """Starts a process, writes its id to the file named in the response, and hangs."""
    child = subprocess.Popen(["sleep", "600"])
    Path(response).write_text(str(child.pid))
    time.sleep(600)
    return 1.0
