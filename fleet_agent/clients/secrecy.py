"""What keeps keys and signed addresses out of what people, logs and prompts get to read."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import urlsplit

from fleet_agent.domain.box_reports import without_tokens
from fleet_agent.errors import KeyRefused

LONGEST_QUOTE = 200
SHORTEST_SECRET = 6
"""Anything shorter hides nothing and would blank out ordinary words and numbers."""

TALKATIVE = ("httpx", "httpcore", "httpx2", "httpcore2", "openai", "urllib3", "requests", "apprise")
"""Libraries that log whole addresses. Signed log addresses and notification addresses are secrets themselves."""


def quiet_transport_logs() -> None:
    """Let the HTTP libraries speak only of warnings. For the start of a process; affects the whole process."""
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def sendable_key(key: str, remedy: str) -> str:
    """`key`, if it can stand in a header. Raises KeyRefused: a stray line end or quote comes from copying."""
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise KeyRefused("the API key is empty or holds a character that no key has", remedy)
    return key


def blanked(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret replaced by stars, and with them every token of a box, which nobody here knows."""
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return without_tokens(text)


def quoted(text: str, secrets: Iterable[str] = ()) -> str:
    """What the other side said, fit for an error: one short line of printable text with every secret blanked out.

    Servers like to repeat the request in their refusals, the key and the environment of a box included.
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in blanked(text, secrets))
    line = " ".join(printable.split())
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}…"


def bare_address(url: str) -> str:
    """`url` without user, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
