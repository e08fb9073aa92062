from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.world import Installation, installation


@pytest.fixture
async def fleet(database_url: str) -> AsyncGenerator[Installation]:
    """An installation in the world of first light: one batch of proofs, no box yet."""
    async with installation(database_url) as made:
        yield made
