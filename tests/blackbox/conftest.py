"""One installation for all tests that kill nothing of it, and what must hold after every test."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from _pytest.mark import ParameterSet

from tests import prefect_home as prefect_home  # before anything imports Prefect
from tests.blackbox.house import House, Setup, built
from tests.blackbox.truths import broken
from tests.blackbox.variants import prefetches

PROCESS = "fleet-agent-process"
WITH_A_PROCESS_WORKER = [pytest.param(Setup(pool=PROCESS), id="process", marks=pytest.mark.soak)]
SETUPS = [pytest.param(Setup(), id="resident"), *WITH_A_PROCESS_WORKER]
WITH_OTHER_PREFETCHES = [
    *SETUPS,
    pytest.param(Setup(differs=prefetches(10)), id="resident, prefetch 10", marks=pytest.mark.soak),
    pytest.param(Setup(pool=PROCESS, differs=prefetches(10)), id="process, prefetch 10", marks=pytest.mark.soak),
    pytest.param(Setup(pool=PROCESS, differs=prefetches(0)), id="process, prefetch 0", marks=pytest.mark.soak),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test with both workers; with each way to propose a run before its time those that are about when a run
    begins, or about many that wait."""
    if "shared_house" in metafunc.fixturenames:
        metafunc.parametrize("shared_house", _setups(metafunc.definition), indirect=True)


def _setups(test: pytest.Item) -> list[ParameterSet]:
    if test.get_closest_marker("any_prefetch"):
        return WITH_OTHER_PREFETCHES
    return WITH_A_PROCESS_WORKER if test.get_closest_marker("process_worker") else SETUPS


@pytest.fixture(scope="session")
def shared_house(request: pytest.FixtureRequest) -> Generator[House]:
    with built(request.param) as house:
        yield house


@pytest.fixture
def house(shared_house: House) -> Generator[House]:
    """The shared installation, at rest before and after, with its heartbeats paused."""
    yield from at_rest(shared_house)


@pytest.fixture
def own_house(request: pytest.FixtureRequest) -> Generator[House]:
    """An installation of its own, for a test that needs another set-up (parametrized indirectly) or ruins this one."""
    with built(getattr(request, "param", Setup())) as house:
        yield from at_rest(house)


def at_rest(house: House) -> Generator[House]:
    if not house.setup.held:
        house.begin()
    yield house
    house.open_gate()
    house.until_at_rest()
    assert broken(house) == []
