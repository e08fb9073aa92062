from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet_agent import cli
from fleet_agent.store import session
from fleet_agent.store.database import open_database
from fleet_agent.store.installation import found_installation


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Run = Callable[..., Said]


def begin(database_url: str) -> None:
    """An installation with the fleet `main`, as `up` leaves it."""
    database = open_database(database_url)
    found_installation(database, speed=60)  # the gaps that a simulated provider wants between two calls shrink with it
    with database.exclusive("main") as tx:
        session.state(tx, "main")
    database.close()


@pytest.fixture
def fleet_agent(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The command line in this process, in a folder and on a database of its own, with no settings but these."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("FLEET_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FLEET_DATABASE_URL", database_url)
    begin(database_url)

    def run(*arguments: str, **settings: str) -> Said:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["fleet-agent", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        code = end.value.code
        return Said(code=code if isinstance(code, int) else 0, out=said.out, err=said.err)

    return run
