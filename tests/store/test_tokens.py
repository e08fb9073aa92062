"""A token opens what it was made for, until another one takes its place, and the database does not give it away."""

from __future__ import annotations

import psycopg

from fleet_agent.store import tokens
from fleet_agent.store.tables import Purpose
from tests.postgres import plain
from tests.store.rig import Fleet


def rotate(fleet: Fleet) -> str:
    with fleet.database.transaction() as tx:
        return tokens.rotate(tx, fleet.name, Purpose.HOOKS, who="ana", now=fleet.clock.now())


def opens(fleet: Fleet, token: str) -> str | None:
    with fleet.database.transaction() as tx:
        return tokens.fleet_of(tx, Purpose.HOOKS, token)


def test_a_token_opens_its_own_fleet_and_a_guess_opens_none(fleet: Fleet) -> None:
    other = Fleet(fleet.database, name="other")
    ours, theirs = rotate(fleet), rotate(other)

    assert (opens(fleet, ours), opens(fleet, theirs)) == ("main", "other")
    assert [opens(fleet, guess) for guess in ("", "guess", ours[:-1], ours.lower(), "\ud83d")] == [None] * 5


def test_a_new_token_takes_the_place_of_the_old_one_and_the_audit_says_so(fleet: Fleet) -> None:
    old, new = rotate(fleet), rotate(fleet)

    assert (opens(fleet, old), opens(fleet, new)) == (None, "main")
    assert [(row["who"], row["what"], row["text"]) for row in fleet.rows("audit")] == [
        ("ana", "token", "a new one for hooks")
    ] * 2


def test_what_is_kept_of_a_token_opens_nothing(fleet: Fleet, database_url: str) -> None:
    token = rotate(fleet)
    with psycopg.connect(plain(database_url)) as connection:
        kept = [str(value) for row in connection.execute("SELECT * FROM token").fetchall() for value in row]

    assert "main" in kept  # the control: this is where it would stand
    assert all(token not in value for value in kept)
    assert [opens(fleet, value) for value in kept] == [None] * len(kept)
