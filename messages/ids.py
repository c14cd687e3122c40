"""Deterministic ids: the same work done twice gets the same id, which is what makes a repeat harmless."""

from __future__ import annotations

import hashlib


def derive(*parts: str | int) -> str:
    """32 hexadecimal digits that depend on nothing but the parts (a blake2b-128 of them, length-prefixed)."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = str(part).encode()
        digest.update(len(encoded).to_bytes(4, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def content_digest(payload: bytes) -> str:
    """32 hexadecimal digits of a payload (blake2b-128): equal content, equal digest."""
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
