"""A source turns domains into tasks: the i-th task depends on (seed, split, i) and on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Protocol

from actors.domains.domain import Domain, Problem
from actors.domains.errors import BadSourceOption, ExhaustedDomain
from actors.domains.split import split_of
from messages.ids import derive
from messages.task import ChatMessage, Split, Task

_TRIES = 2_000
"""Draws without a new held-out prompt after which a domain's problem space counts as used up."""


class Source(Protocol):
    """Where tasks come from."""

    name: str

    def tasks(self, n: int, seed: int, split: Split, **options: Any) -> Iterator[Task]:
        """Yield ``n`` tasks of ``split``; a longer request starts with the shorter one's tasks."""
        ...

    def demonstration(self, task: Task, rng: Random, noise: float) -> str:
        """Return the right answer to ``task`` or, with probability ``noise``, a plausible wrong one."""
        ...


class ProceduralSource:
    """The tasks of one or several domains, in turn."""

    def __init__(self, name: str, domains: Sequence[Domain]) -> None:
        self.name = name
        self._domains = {domain.name: domain for domain in domains}

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains, in the order in which their tasks come."""
        return tuple(self._domains)

    @property
    def phrases(self) -> tuple[str, ...]:
        """Every fixed piece of text of the domains, once."""
        return tuple(dict.fromkeys(phrase for domain in self._domains.values() for phrase in domain.phrases))

    def tasks(self, n: int, seed: int, split: Split, **options: Any) -> Iterator[Task]:
        """Yield ``n`` tasks of ``split``, one of each domain in turn; held-out prompts are all different.

        Args:
            n: how many tasks.
            seed: another seed, other tasks (of the same split).
            split: "train" or "eval"; no prompt is ever in both.
            **options: ``level`` (default 0), the difficulty.

        Raises:
            BadSourceOption: an unknown option or a level that a domain does not have.
            ExhaustedDomain: a domain has fewer different held-out prompts than were asked for.
        """
        streams = [self.endless(domain, seed, split, **options) for domain in self._domains]
        for i in range(n):
            yield next(streams[i % len(streams)])

    def endless(self, domain: str, seed: int, split: Split, **options: Any) -> Iterator[Task]:
        """Yield the tasks of one domain until its problem space is used up; see ``tasks``.

        Raises:
            BadSourceOption: this source has no such domain, option or level.
            ExhaustedDomain: no different held-out prompt is left.
        """
        drawn = self._domain(domain)
        return _stream(drawn, drawn.problem, seed, split, self._level(options))

    def lessons(self, domain: str, seed: int, share: float = 0.5, **options: Any) -> Iterator[Task]:
        """Yield train tasks to learn from by demonstration: a ``share`` of lessons, the others as ``endless`` has them.

        Raises:
            BadSourceOption: this source has no such domain, option or level.
        """
        drawn = self._domain(domain)

        def draw(rng: Random, level: int) -> Problem:
            return drawn.lesson(rng, level) if rng.random() < share else drawn.problem(rng, level)

        return _stream(drawn, draw, seed, "train", self._level(options))

    def demonstration(self, task: Task, rng: Random, noise: float) -> str:
        """Return the right answer to ``task`` or, with probability ``noise``, a plausible wrong one."""
        if task.answer is None:
            raise BadSourceOption(f"task {task.id} has no reference answer to demonstrate")
        if rng.random() >= noise:
            return task.answer
        return self._domains[task.domain].mistake(task.answer, rng)

    def _domain(self, name: str) -> Domain:
        if name not in self._domains:
            known = ", ".join(self._domains)
            raise BadSourceOption(f"source {self.name!r} has no domain {name!r}, use one of {known}")
        return self._domains[name]

    def _level(self, options: dict[str, Any]) -> int:
        unknown = set(options) - {"level"}
        if unknown:
            raise BadSourceOption(f"source {self.name!r} has no option {sorted(unknown)[0]!r}: it takes level")
        level = options.get("level", 0)
        top = min(domain.n_levels for domain in self._domains.values()) - 1
        if not isinstance(level, int) or not 0 <= level <= top:
            raise BadSourceOption(f"source {self.name!r}: level {level!r} does not exist, use 0 to {top}")
        return level


def _stream(
    domain: Domain, draw: Callable[[Random, int], Problem], seed: int, split: Split, level: int
) -> Iterator[Task]:
    seen: set[str] = set()
    i = tries = 0
    while tries < _TRIES:
        rng = Random(derive("problem", domain.name, seed, split, level, i, tries))
        problem = draw(rng, level)
        if split_of(problem.prompt) != split or (split == "eval" and problem.prompt in seen):
            tries += 1
            continue
        if split == "eval":
            seen.add(problem.prompt)
        yield Task(
            id=f"{domain.name}-{split}-{derive(domain.name, seed, split, level, i)[:16]}",
            domain=domain.name,
            messages=(ChatMessage(role="user", content=problem.prompt),),
            verifier=problem.verifier,
            answer=problem.answer,
            level=level,
            split=split,
            metadata=dict(problem.metadata),
        )
        i, tries = i + 1, 0
    raise ExhaustedDomain(f"domain {domain.name!r} at level {level} has only {i} different {split} prompts")
