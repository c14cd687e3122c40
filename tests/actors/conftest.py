"""What the actors' wiring tests share: a stage with a server, a run file and a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.actors.lives import Stage, run_config, staged
from tests.conftest import LiveBus


@pytest.fixture
async def stage(live: LiveBus, tmp_path: Path) -> AsyncIterator[Stage]:
    """Domain ``d``, groups of two samples, batches of two groups, max_lag 2."""
    async with staged(live, tmp_path, run_config(tmp_path)) as made:
        yield made
