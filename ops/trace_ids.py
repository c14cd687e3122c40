"""Ids of traces and spans that no two processes share."""

from __future__ import annotations

import os
import struct
from collections import deque

from opentelemetry.sdk.trace.id_generator import IdGenerator


class UrandomIds(IdGenerator):
    """Ids from the operating system: the seeded ``random`` would give every worker of a run the same ones.

    Bits are fetched for many ids at a time, since each system call gives up the interpreter lock; a forked child throws
    its parent's away.
    """

    def __init__(self) -> None:
        self._pool: deque[int] = deque()
        os.register_at_fork(after_in_child=self._pool.clear)

    def generate_span_id(self) -> int:
        """64 random bits, not 0."""
        while True:
            try:
                return self._pool.pop()
            except IndexError:
                bits = os.urandom(8 * 512)
                self._pool.extend(filter(None, struct.unpack("<512Q", bits)))

    def generate_trace_id(self) -> int:
        """128 random bits, not 0."""
        return self.generate_span_id() << 64 | self.generate_span_id()

    def is_trace_id_random(self) -> bool:
        """Samplers may rely on the bits; traceparents end in -03 when sampled."""
        return True
