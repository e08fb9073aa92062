"""What senders send: Alertmanager's webhook as version 4 writes it, one group with what a test varies."""

from __future__ import annotations

from typing import Any

FIRING_SINCE = "2026-03-17T11:58:30.123456789Z"
STILL_FIRING = "0001-01-01T00:00:00Z"


def alert(name: str = "QueueStarved", **changes: Any) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {"alertname": name, "severity": "critical", "instance": "curio-1:4701"},
        "annotations": {"summary": "No proof was made for ten minutes."},
        "startsAt": FIRING_SINCE,
        "endsAt": STILL_FIRING,
        "generatorURL": "http://prometheus.example/graph?g0.expr=up",
        "fingerprint": f"{hash(name) & 0xFFFFFFFF:x}",
        **changes,
    }


def group(*alerts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": '{}:{job="curio"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "fleet-agent",
        "groupLabels": {"job": "curio"},
        "commonLabels": {"job": "curio"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager.example",
        "alerts": list(alerts),
        **changes,
    }
