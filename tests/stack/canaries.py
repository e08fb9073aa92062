"""Everything that an installation has written, and whether something stands in it that nobody should read there."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import psycopg
from psycopg import sql

from tests.postgres import plain
from tests.stack.trees import Tree

DATABASES = ("fleet", "prefect")


def found(tree: Tree, secrets: Collection[str], *, said: str = "") -> set[tuple[str, str]]:
    """Where a secret stands, and its beginning. `said`: what commands have printed, beside what is kept."""
    return {
        (place, secret[:12])
        for place, text in (*_files(tree), *_rows(tree), ("what was printed", said.encode()))
        for secret in secrets
        if secret.encode() in text
    }


def _files(tree: Tree) -> Iterator[tuple[str, bytes]]:
    """The whole folder: data, logs, what the root process printed, and the files of the databases."""
    folder = tree.data_dir.parent
    for path in folder.rglob("*"):
        if path.is_file():
            try:
                yield str(path.relative_to(folder)), path.read_bytes()
            except FileNotFoundError:  # a database has many that come and go
                continue


def _rows(tree: Tree) -> Iterator[tuple[str, bytes]]:
    """Every row of every table as text, for what is long is packed in the files."""
    for database in DATABASES:
        with psycopg.connect(plain(tree.runtime.database_url), dbname=database) as connection:
            ours = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            for (table,) in connection.execute(ours).fetchall():
                query = sql.SQL("SELECT t::text FROM {} AS t").format(sql.Identifier(table))
                for (row,) in connection.execute(query):
                    yield f"{database}.{table}", row.encode()
