"""The uniform sampler: every domain its share of the dispatches, every task of a domain once per pass. Pure."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Pool:
    """The tasks of one domain: stream sequences, and the current pass's order over those known at its start."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    order: list[int] = field(default_factory=list)
    passes: int = 0
    position: int = 0
    refused: set[int] = field(default_factory=set)


class UniformSampler:
    """Draws (domain, task) pairs.

    Domains come by smooth weighted round-robin, so that every short run of dispatches has each domain's share as nearly
    as whole numbers allow. A domain without tasks is passed over and does not save up its share.
    """

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self._weights = {domain: weight for domain, weight in weights.items() if weight > 0}
        self._seed = seed
        self._credit = dict.fromkeys(self._weights, 0.0)
        self._pools = {domain: _Pool() for domain in self._weights}

    def add(self, domain: str, seq: int) -> bool:
        """Learn of a task; returns whether its domain is part of the run. New tasks join at the next pass."""
        pool = self._pools.get(domain)
        if pool is None:
            return False
        pool.seqs.append(seq)
        return True

    @property
    def n_tasks(self) -> int:
        """Tasks known."""
        return sum(len(pool.seqs) for pool in self._pools.values())

    def refuse(self, domain: str, seq: int) -> None:
        """Never draw this task again."""
        pool = self._pools.get(domain)
        if pool is not None:
            pool.refused.add(seq)

    def readmit(self, domain: str, seq: int) -> None:
        """Draw a refused task again."""
        pool = self._pools.get(domain)
        if pool is not None:
            pool.refused.discard(seq)

    def draw(self) -> tuple[str, int] | None:
        """The next (domain, stream sequence of the task), or None while no domain has tasks that may be drawn."""
        ready = [domain for domain, pool in self._pools.items() if len(pool.seqs) > len(pool.refused)]
        if not ready:
            return None
        for domain in ready:
            self._credit[domain] += self._weights[domain]
        chosen = max(ready, key=lambda domain: self._credit[domain])
        self._credit[chosen] -= sum(self._weights[domain] for domain in ready)
        return chosen, self._next_task(chosen)

    def _next_task(self, domain: str) -> int:
        pool = self._pools[domain]
        while True:
            if pool.position >= len(pool.order):
                pool.passes += 1
                self._start_pass(domain, pool)
            seq = pool.seqs[pool.order[pool.position]]
            pool.position += 1
            if seq not in pool.refused:
                return seq

    def _start_pass(self, domain: str, pool: _Pool) -> None:
        pool.order = list(range(len(pool.seqs)))
        random.Random(f"{self._seed}/{domain}/{pool.passes}").shuffle(pool.order)
        pool.position = 0

    def to_json(self) -> dict[str, Any]:
        """Where each domain stands, as plain data."""
        return {
            domain: [self._credit[domain], pool.passes, pool.position, len(pool.order)]
            for domain, pool in self._pools.items()
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take up where :meth:`to_json` stood; call it after the tasks known then have been added again."""
        for domain, (credit, passes, position, n_order) in data.items():
            pool = self._pools.get(domain)
            if pool is None or n_order > len(pool.seqs):
                continue
            self._credit[domain] = credit
            pool.passes = passes
            pool.order = list(range(n_order))
            random.Random(f"{self._seed}/{domain}/{passes}").shuffle(pool.order)
            pool.position = position
