"""The systemd unit is one that systemd accepts, and gives a run the time it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from fleet_agent.stack.tree import MAY_TAKE_TO_END, MAY_TAKE_TO_FINISH_A_RUN

UNIT = Path(__file__).parents[2] / "infra" / "systemd" / "fleet-agent.service"


def verified(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What systemd says of the unit, with programs and users that this machine has."""
    here = text.replace("/opt/fleet-agent/.venv/bin/fleet-agent", sys.executable)
    unit = folder / UNIT.name
    unit.write_text(re.sub(r"^User=.*$", "User=root", here, flags=re.MULTILINE))
    return subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "FLEET_TESTS_MUST_NOT_SKIP" not in os.environ,
    reason="needs systemd-analyze (Debian: systemd)",
)
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    accepted = verified(UNIT.read_text(), tmp_path)
    assert (accepted.returncode, accepted.stderr) == (0, "")

    # The control: it does look at what is written.
    spoilt = verified(UNIT.read_text().replace("Restart=always", "Restart=allways"), tmp_path)
    assert "allways" in spoilt.stderr


def test_systemd_waits_longer_than_the_tree_may_take_to_end() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), flags=re.MULTILINE)
    assert found
    # One after the other: the watch, the worker, which finishes its run, the server, the hooks and the database.
    assert timedelta(seconds=int(found[1])) > MAY_TAKE_TO_FINISH_A_RUN + 4 * MAY_TAKE_TO_END
