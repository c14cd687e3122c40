"""Train and eval never share a prompt: this file alone decides which side a prompt falls on, by a hash of its text."""

from __future__ import annotations

import hashlib

from messages.task import Split

EVAL_SHARE = 0.2
"""Share of every problem space that is held out."""


def split_of(prompt: str) -> Split:
    """Return the side on which ``prompt`` falls: the same for every seed, level, source and machine."""
    digest = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "little") < EVAL_SHARE * 2**64 else "train"
