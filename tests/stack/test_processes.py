"""Child processes end when they should, and with them what they left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from fleet_agent.errors import FleetAgentError
from fleet_agent.stack.orphans import read_groups
from fleet_agent.stack.processes import Command, Guardian, Process, begin, last_words
from tests.stack.waiting import alive, until

LONG = timedelta(seconds=30)
BRIEF = timedelta(seconds=0.2)

OBEYS = "import time; print('up', flush=True); time.sleep(60)"
IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEYS}"
HAS_A_CHILD = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", {OBEYS!r}], stdout=subprocess.DEVNULL).pid, flush=True)
time.sleep(60)
"""


@asynccontextmanager
async def child(
    script: str, folder: Path, *, may_take_to_start: timedelta = LONG, may_take_to_end: timedelta = LONG
) -> AsyncGenerator[Process]:
    """Python code as a child that is ready once it has printed something."""

    async def has_spoken(_: datetime) -> bool:
        return (folder / "child.log").stat().st_size > 0

    command = Command(
        name="child",
        arguments=(sys.executable, "-c", script),
        environment=dict(os.environ),
        folder=folder,
        is_ready=has_spoken,
        may_take_to_start=may_take_to_start,
        may_take_to_end=may_take_to_end,
    )
    with Guardian() as guardian:
        process = await Process.start(command, folder, guardian)
        try:
            yield process
        finally:
            hurry = asyncio.Event()
            hurry.set()
            await process.stop(hurry)


async def test_a_process_is_ready_when_its_own_sign_says_so(tmp_path: Path) -> None:
    async with child(OBEYS, tmp_path) as process:
        await process.until_ready()
        assert (tmp_path / "child.log").read_text() == "up\n"


async def test_a_process_that_ends_instead_is_reported_with_its_last_words(tmp_path: Path) -> None:
    async with child("import sys; sys.exit('the port is taken\\n')", tmp_path) as process:
        await process.until_ended()

        assert str(process.failure()) == f"child ended (exit code 1): the port is taken → its log: {process.log}"


async def test_a_process_that_does_not_become_ready_is_reported(tmp_path: Path) -> None:
    silent = "import time; time.sleep(60)"
    async with child(silent, tmp_path, may_take_to_start=BRIEF) as process:
        with pytest.raises(FleetAgentError, match=r"child was not ready within 0 s → its log: .*child\.log"):
            await process.until_ready()


async def test_a_process_that_is_done_when_it_ends_must_end_well(tmp_path: Path) -> None:
    async def run(script: str) -> None:
        command = Command("child", (sys.executable, "-c", script), dict(os.environ), tmp_path, None, LONG, LONG)
        with Guardian() as guardian:
            await (await Process.start(command, tmp_path, guardian)).until_ready()

    await run("print('done')")
    with pytest.raises(FleetAgentError, match="exit code 3"):
        await run("import sys; sys.exit(3)")


FAILS_ONCE = f"""
import pathlib, sys
tries = pathlib.Path("tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) < 2:
    sys.exit("the database was busy")
{OBEYS}
"""


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_process_that_fails_once_is_started_once_more_where_it_may_be(tmp_path: Path, tries: int) -> None:
    """With one try, the control, the failure of a moment is the end."""

    async def is_up(_: datetime) -> bool:
        return (tmp_path / "child.log").read_text().endswith("up\n")

    command = Command(
        name="child",
        arguments=(sys.executable, "-c", FAILS_ONCE),
        environment=dict(os.environ),
        folder=tmp_path,
        is_ready=is_up,
        may_take_to_start=LONG,
        may_take_to_end=LONG,
        tries=tries,
    )
    processes: list[Process] = []
    said: list[str] = []
    with Guardian() as guardian:
        beginning = begin(command, tmp_path, guardian, begun=processes.append, tell=said.append)
        if tries == 1:
            with pytest.raises(FleetAgentError, match="the database was busy"):
                await beginning
        else:
            await beginning
            ended = "child ended (exit code 1): the database was busy"
            assert said == [f"{ended} → its log: {processes[0].log}; starting it once more"]
        assert len(processes) == tries
        await processes[-1].stop(asyncio.Event())


async def test_a_process_that_ignores_the_request_to_end_is_killed_when_its_time_is_up(tmp_path: Path) -> None:
    async with child(IGNORES_SIGTERM, tmp_path, may_take_to_end=BRIEF) as process:
        await process.until_ready()
        os.kill(process.pid, signal.SIGTERM)
        assert alive([psutil.Process(process.pid)])  # the control: to ask alone does not end it

        seen = psutil.Process(process.pid)
        await process.stop(asyncio.Event())

        assert alive([seen]) == []


async def test_a_process_that_may_take_its_time_is_killed_at_once_when_somebody_is_in_a_hurry(tmp_path: Path) -> None:
    async with child(IGNORES_SIGTERM, tmp_path, may_take_to_end=timedelta(hours=1)) as process:
        await process.until_ready()
        seen, hurry = psutil.Process(process.pid), asyncio.Event()
        stopping = asyncio.create_task(process.stop(hurry))
        await asyncio.sleep(0)
        assert not stopping.done()

        hurry.set()
        await stopping

        assert alive([seen]) == []


async def test_what_a_killed_process_had_started_ends_with_it(tmp_path: Path) -> None:
    async with child(HAS_A_CHILD, tmp_path) as process:
        await process.until_ready()
        grandchild = psutil.Process(int((tmp_path / "child.log").read_text()))
        os.kill(process.pid, signal.SIGKILL)
        assert alive([grandchild])  # the control: it outlives its parent

        await process.until_ended()

        until(lambda: alive([grandchild]) == [])


async def test_a_ctrl_c_in_the_terminal_does_not_reach_a_child(tmp_path: Path) -> None:
    async with child(OBEYS, tmp_path) as process:
        assert os.getpgid(process.pid) == process.pid != os.getpgid(0)


async def test_a_log_that_has_grown_large_is_put_aside_once(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("old\n" * 2_000_000)

    async with child(OBEYS, tmp_path) as process:
        await process.until_ready()
        assert log.read_text() == "up\n"
        assert (tmp_path / "child.log.1").read_text().startswith("old")


@pytest.mark.parametrize("guarded", [True, False])
def test_the_children_of_a_killed_parent_end_because_of_the_guardian(tmp_path: Path, guarded: bool) -> None:
    script = f"""
import contextlib, subprocess, sys, time
from fleet_agent.stack.processes import Guardian
with Guardian() if {guarded} else contextlib.nullcontext() as guardian:
    child = subprocess.Popen([sys.executable, "-c", {OBEYS!r}], start_new_session=True, stdout=subprocess.DEVNULL)
    if guardian:
        guardian.began(child.pid)
    print(child.pid, flush=True)
    time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    orphan = psutil.Process(int(parent.stdout.readline()))
    helpers = [process for process in psutil.Process(parent.pid).children() if process != orphan]

    parent.kill()
    parent.communicate()

    if guarded:
        until(lambda: alive([orphan, *helpers]) == [])
    else:
        assert alive([orphan])  # the control: nobody ends it
        orphan.kill()


def test_the_guardian_knows_what_still_runs_and_in_which_order_it_began() -> None:
    assert read_groups(["+1\n", "+2\n", "+3\n", "-2\n", "+4\n", "-9\n"]) == [1, 3, 4]
    assert read_groups([]) == []


async def test_a_process_that_ends_without_an_error_is_not_ready_either(tmp_path: Path) -> None:
    async with child("pass", tmp_path) as process:
        with pytest.raises(FleetAgentError, match=r"child ended \(exit code 0\): it said nothing"):
            await process.until_ready()


def test_the_last_words_of_a_process_are_its_error_and_not_the_good_bye_after_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\n  File …\nOSError: [Errno 98] in use\n\nServer stopped!\n")
    assert last_words(log) == "OSError: [Errno 98] in use"

    log.write_text("only this\n\n")
    assert last_words(log) == "only this"
