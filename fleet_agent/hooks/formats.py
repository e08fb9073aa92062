"""What a body means: JSON becomes events. Pure, and lenient: a body of a known format that lacks something is still an
event, only of the unknown sort.

Known is the webhook of Prometheus Alertmanager, version 4
(https://prometheus.io/docs/alerting/latest/configuration/#webhook_config). It sends a whole group each time one of its
alerts changes, and again every few hours, and each of a pair of Alertmanagers may send it; so an alert is one
occurrence of (fingerprint, start, status), however often it is told. Any other JSON is one event.

What an Alertmanager says in typed fields (names, labels, times) may stand in a prompt as it is. What people wrote for
people in annotations, a label that is no plain word, and any other JSON are words of strangers: their event is tainted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from pydantic import AwareDatetime, BaseModel, Field, ValidationError, field_validator

from fleet_agent.domain.show import utc
from fleet_agent.domain.triggers import Kind
from fleet_agent.errors import FixSetup
from fleet_agent.store.inbox import Post

DEEPEST: Final = 64
"""Levels of a body. Nobody means more, and what walks through values later does so by recursion."""

LONGEST_TEXT: Final = 400
"""Characters of an event's line; everything else is in its payload."""

LONGEST_PLAIN: Final = 40
MOST_PLAIN_WORDS: Final = 5
MOST_PLAIN_LABELS: Final = 16
"""Of labels that may stand in a prompt as they are: what is longer, or more, could be a message in pieces."""

_WORD: Final = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}")
"""In any way of joining them; two letters and more, so that hashes are no words."""

EXPLAINING: Final = ("summary", "message", "description", "details")
"""Annotations in which an alert is explained; the first that there is."""

SPEAKING: Final = ("title", "summary", "message", "text", "body")
"""Where programs put what a person should read."""


def events_of(source: str, body: bytes, *, idempotency_key: str | None) -> tuple[Post, ...]:
    """The events of a body, none where an Alertmanager has nothing to tell.

    idempotency_key: what the sender calls this one post, where it does. Raises FixSetup for what is no JSON.
    """
    value = _parsed(body)
    group = _alert_group(value)
    if group is None:
        return (_unknown(source, value, idempotency_key),)
    return tuple(_alert(source, alert, raw) for alert, raw in zip(group.alerts, value["alerts"], strict=True))


def _parsed(body: bytes) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FixSetup("the body is no JSON", "send a JSON value in UTF-8") from error
    if _is_deeper(value, DEEPEST):
        raise FixSetup(f"the body is nested deeper than {DEEPEST} levels", "send something flatter")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    match value:
        case dict():
            parts = list(cast("dict[str, Any]", value).values())
        case list():
            parts = cast("list[Any]", value)
        case _:
            return False
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in parts)


# --- Alertmanager ----------------------------------------------------------------------------------------------------


class _Alert(BaseModel):
    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    starts_at: AwareDatetime = Field(alias="startsAt")
    fingerprint: str = ""  # older versions send none

    @field_validator("starts_at")
    @classmethod
    def _in_utc(cls, moment: datetime) -> datetime:
        try:
            return moment.astimezone(UTC)
        except OverflowError as error:  # the year 1, which is Go's word for never, in some other zone
            raise ValueError("out of range") from error


class _AlertGroup(BaseModel):
    version: Literal["4"]
    alerts: list[_Alert]


def _alert_group(value: Any) -> _AlertGroup | None:
    try:
        return _AlertGroup.model_validate(value)
    except ValidationError:
        return None


def _alert(source: str, alert: _Alert, raw: dict[str, Any]) -> Post:
    fires = alert.status == "firing"
    labels = dict(alert.labels)
    name = labels.pop("alertname", "an alert without a name")
    severity = labels.pop("severity", "")
    since = f"fires since {utc(alert.starts_at)}" if fires else f"is resolved (it fired since {utc(alert.starts_at)})"
    explained = next((alert.annotations[key] for key in EXPLAINING if alert.annotations.get(key)), "")
    plain = all(map(_is_plain, (*alert.labels.keys(), *alert.labels.values())))
    tainted = bool(explained) or not plain or len(alert.labels) > MOST_PLAIN_LABELS
    told = ", ".join(f"{key}={label}" for key, label in sorted({"severity": severity, **labels}.items()) if label)
    return Post(
        kind=Kind.ALERT_FIRING if fires else Kind.ALERT_RESOLVED,
        source=source,
        text=_line(f"{source}: {name} {since} [{told}] {explained}"),
        payload=raw,
        tainted=tainted,
        severity=severity,
        occurrence_id=_digest(
            source, alert.fingerprint or _fingerprint(alert.labels), alert.starts_at.isoformat(), alert.status
        ),
    )


def _is_plain(label: str) -> bool:
    """A name, a number or an address, in which nobody can say much: a sentence has more words, however joined."""
    fits = re.fullmatch(r"[\w.:/@%+-]*", label, re.ASCII) and len(label) <= LONGEST_PLAIN
    return bool(fits) and len(_WORD.findall(label)) <= MOST_PLAIN_WORDS


def _fingerprint(labels: Mapping[str, str]) -> str:
    """Alertmanager's own is a hash of the labels too."""
    return json.dumps(labels, sort_keys=True)


# --- everything else -------------------------------------------------------------------------------------------------


def _unknown(source: str, value: Any, idempotency_key: str | None) -> Post:
    body = cast("dict[str, Any]", value) if isinstance(value, dict) else {"body": value}
    words = [word for key in SPEAKING if isinstance(word := body.get(key), str) and word.strip()]
    return Post(
        kind=Kind.WEBHOOK,
        source=source,
        text=_line(f"{source}: {': '.join(words) or json.dumps(value, ensure_ascii=False)}"),
        payload=body,
        tainted=True,
        occurrence_id=idempotency_key and _digest(source, idempotency_key),
    )


def _line(text: str) -> str:
    """One line of printable text: a stranger's line breaks could pass for words of a person in a prompt."""
    beginning = text[: 4 * LONGEST_TEXT]
    printable = "".join(letter if letter.isprintable() else " " for letter in beginning)
    line = " ".join(printable.split())
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 1]}…"


def _digest(*parts: str) -> str:
    """A key of bounded length, whatever a stranger calls its things."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
