"""One provider per test, and the official clients pointed at it with nothing of the user's in reach."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.applications import Starlette
from vastai import VastAI

from fleet_agent.sim.clock import ManualClock
from fleet_agent.sim.market import Market, MarketConfig
from fleet_agent.sim.vast_app import create_app
from tests.contract.serving import Provider, Recorder, serving

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 2, 21, 0, tzinfo=UTC))


@pytest.fixture
def market(clock: ManualClock) -> Market:
    return Market(clock, seed=1, config=MarketConfig(taken_share=0.1))


@pytest.fixture(scope="session")
def line() -> Iterator[tuple[str, Recorder]]:
    """One open port for all tests; each puts its own world behind it."""
    recorder = Recorder(Starlette())
    with serving(recorder) as url:
        yield url, recorder


@pytest.fixture
def provider(line: tuple[str, Recorder], market: Market, clock: ManualClock) -> Provider:
    url, recorder = line
    recorder.app = create_app(market)
    recorder.asked = []
    return Provider(url, market, clock, recorder)


@pytest.fixture
def sdk(provider: Provider) -> VastAI:
    return VastAI(api_key="made-up-key", server_url=provider.url)


@pytest.fixture
def environment(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """A process environment in which the official command line reaches only the given address and a temporary home."""

    def build(url: str) -> dict[str, str]:
        folders = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CONFIG", "CACHE", "DATA", "STATE")}
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "VAST_URL": url,
            "VASTAI_NO_UPDATE_CHECK": "1",
            "COLUMNS": "400",
            **folders,
        }

    return build


@pytest.fixture
def vastai(environment: Callable[[str], dict[str, str]]) -> Callable[[str], Cli]:
    """The official command line, as a function of its arguments."""
    program = Path(sys.executable).parent / "vastai"

    def at(url: str) -> Cli:
        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [program, "--url", url, "--api-key", "made-up-key", *arguments],
                env=environment(url),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                stdin=subprocess.DEVNULL,
            )

        return run

    return at


@pytest.fixture
def cli(provider: Provider, vastai: Callable[[str], Cli]) -> Cli:
    return vastai(provider.url)
