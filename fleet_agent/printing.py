"""Rows for people and rows for programs. What a person sees of a list is chosen here, column by column."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from fleet_agent.domain.approvals import Grant
from fleet_agent.domain.ledger import ActionStatus
from fleet_agent.domain.money import UsdPerHour, show_rate, show_usd
from fleet_agent.domain.rules import Mode
from fleet_agent.domain.show import gpu, one_line
from fleet_agent.domain.triggers import Priority

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]


def print_json(value: object) -> None:
    print(json.dumps(value, default=_plain, ensure_ascii=False, indent=2))


def print_rows(rows: Sequence[Row], columns: Sequence[Column], *, as_json: bool) -> None:
    """A table whose last column is cut at the edge of a terminal, and whole where the output goes elsewhere."""
    if as_json:
        print_json(rows)
        return
    cells = [[title for title, _ in columns], *([one_line(cell(row)) for _, cell in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in cells:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()[:edge])


def run_line(row: Row) -> str:
    """One closed run as one line, for the demo and `up`."""
    return (
        f"#{row['run_id']:<4} {_trigger(row):<34} {_outcome(row):<14} {_tokens(row):>7} tokens  "
        f"{show_usd(row['cost_usd']):>8}  {_seconds(row):>6}  {one_line(row['summary'])}"
    )


def print_status(found: Row) -> None:
    last = found["last_run"]
    next_wake = found["next_wake_at"]
    lines = {
        "fleet": f"{found['fleet']} (installation {found['installation']})",
        "place": found["place"],
        "tree": f"running (pid {found['tree']})" if found["tree"] else "not running: nothing watches",
        "mode": found["mode"],
        "demand": _demand(found["demand"]),
        "boxes": f"{found['boxes']} live, {found['in_flight']} in flight",
        "burn": f"{show_rate(found['burn_usd_per_hour'])}, and {show_rate(found['in_flight_usd_per_hour'])} reserved",
        "spent": _spent(found),
        "credit": _credit(found),
        "last run": f"#{last['run_id']} {_trigger(last)}: {_outcome(last)}, {last['exit_reason']}" if last else "none",
        "waiting": f"{found['waiting_events']} events, {found['pending_wakes']} wakes",
        "next wake": f"{next_wake:%Y-%m-%d %H:%M:%S} UTC" if next_wake else "none",
        "models": f"{found['model_calls_of_day']} requests, {found['model_tokens_of_day']:,} tokens, "
        f"{show_usd(found['model_usd_of_day'])} in 24 h",
        "objective": found["objective"] or "(none set)",
    }
    for name, text in lines.items():
        print(f"{name:<10} {one_line(text)}")
    for brake in _brakes(found):
        print(f"BRAKE      {one_line(brake)}")
    for approval in found["approvals"]:
        print(f"APPROVAL   {one_line(_approval(approval))}")
    if found["quarantined"]:
        print(f"{found['quarantined']} event(s) are quarantined: runs kept failing under them (`inbox list`).")
    if found["newest_notice"]:
        untold = found["untold_notices"]
        print(f"NOTICE     {one_line(found['newest_notice'])}{f' ({untold} not told yet)' if untold else ''}")
    for question in found["questions"]:
        print(f"QUESTION   {one_line(question)}")
    for model in found["models"]:
        print(f"{'model':<10} {one_line(_model(model))}")


def _brakes(found: Row) -> list[str]:
    """What holds the agent back, and how a person ends it."""
    rents, removals, everything = (f"fleet-agent resume{which}" for which in (" --scale-out", " --scale-in", ""))
    return [
        *([f"the fleet is paused → {everything}"] if found["mode"] == Mode.PAUSED else []),
        *([f"nothing is rented → {rents}"] if found["scale_out_paused"] else []),
        *([f"no box is given up → {removals}"] if found["scale_in_paused"] else []),
        *([f"nothing is rented: {found['rent_breaker']} → {rents}"] if found["rent_breaker"] else []),
        *([f"nothing happens by itself: {found['frozen_because']} → {everything}"] if found["frozen_because"] else []),
    ]


def _approval(approval: Row) -> str:
    key = approval["key"]
    return f"{approval['bound']}: {approval['sentence']} → fleet-agent approve {key}, or reject {key}"


def _spent(found: Row) -> str:
    cap = found["max_usd_per_day"]
    bound = "" if cap is None else f" of {show_usd(cap)}"
    return f"{show_usd(found['box_usd_of_day'])}{bound} in 24 h, {show_usd(found['box_usd_of_hour'])} of it this hour"


def _credit(found: Row) -> str:
    if found["credit_usd"] is None:
        return "unknown: no look of the watch has read it"
    lasts = found["runway"]
    left = "" if lasts is None else f", lasts {lasts.total_seconds() / 3600:.0f} h at this burn"
    return f"{show_usd(found['credit_usd'])} at {_time(found, 'credit_seen_at')} UTC{left}"


def _demand(seen: Row | None) -> str:
    if seen is None or seen["pending"] is None:
        return "unknown: " + ("the watch has not looked yet" if seen is None else "the last look could not read it")
    done = "" if seen["done_per_hour"] is None else f", {seen['done_per_hour']:.0f} done within an hour"
    return f"{seen['pending']} pending, {seen['running']} running{done}, at {_time(seen, 'seen_at')} UTC"


def _model(row: Row) -> str:
    """One model of the list: whether it is well, and what a person should know of it."""
    marks = [
        "needs you" if row["needs_a_person"] else "left alone" if row["left_alone"] else "",
        f"{row['failures']} failures in a row: {row['trouble']}" if row["failures"] else "",
        "it CUTS our prompts: give it a larger window" if row["truncates_since"] else "",
        f"our token count × {row['factor']:.2f}" if row["factor"] > 1 else "",
        row["test"] and f"self-test: {row['test']}",
    ]
    return f"{row['model']} at {row['server']}: {'; '.join(filter(None, marks)) or 'well'}"


def _rate(row: Row) -> UsdPerHour:
    """As the newest look shows it; as agreed until there is one."""
    return UsdPerHour(row["agreed_usd_per_hour"] if row["seen_usd_per_hour"] is None else row["seen_usd_per_hour"])


def _trigger(row: Row) -> str:
    text = one_line(f"{row['trigger']}: {row['reason']}" if row["reason"] else row["trigger"])
    return text if len(text) <= 34 else text[:33] + "…"


def _outcome(row: Row) -> str:
    verdict = row["verdict"]
    if row["status"] != "closed" or verdict is None:
        return row["status"]
    if row["quiet"]:
        return "quiet"
    outcome = "acted" if verdict["action"] else "no-op" if row["no_op"] else "looked"
    return f"{outcome}, tainted" if row["tainted"] else outcome


def _tokens(row: Row) -> str:
    return f"{row['tokens_in'] + row['tokens_out']:,}"


def _seconds(row: Row) -> str:
    return "" if row["seconds"] is None else f"{row['seconds']:.1f} s"


def _time(row: Row, name: str) -> str:
    return f"{row[name]:%m-%d %H:%M:%S}" if row[name] else ""


def _state(row: Row) -> str:
    match row["state"]:
        case "quarantined":
            return f"quarantined after {row['attempts']} attempts"
        case "claimed":
            return f"claimed by run #{row['claimed_by_run']}"
        case state:
            return state


def _action_outcome(row: Row) -> str:
    """What waits for a word is shown with what the word would grant."""
    if row["status"] != ActionStatus.AWAITING_APPROVAL or row["grant"] is None:
        return row["outcome"] or row["sentence"]
    bound = Grant.model_validate(row["grant"]).in_words()
    return f"approved: {bound}" if row["approved_by"] else f"{bound}? {row['sentence']}"


RUN_COLUMNS: tuple[Column, ...] = (
    ("run", lambda row: f"#{row['run_id']}"),
    ("at (UTC)", lambda row: _time(row, "opened_at")),
    ("trigger", _trigger),
    ("outcome", _outcome),
    ("tokens", _tokens),
    ("cost", lambda row: show_usd(row["cost_usd"])),
    ("took", _seconds),
    ("ended by", lambda row: row["exit_reason"]),
    ("summary", lambda row: row["summary"]),
)

ACTION_COLUMNS: tuple[Column, ...] = (
    ("key", lambda row: row["key"]),
    ("at (UTC)", lambda row: _time(row, "created_at")),
    ("who", lambda row: row["actor"]),
    ("what", lambda row: f"{row['tool']} {row['arguments'].get('offer_id') or row['arguments'].get('id') or ''}"),
    ("status", lambda row: row["status"]),
    ("ruling", lambda row: row["code"]),
    ("reason", lambda row: row["arguments"].get("reason") or row["arguments"].get("text", "")),
    ("outcome", _action_outcome),
)

BOX_COLUMNS: tuple[Column, ...] = (
    ("box", lambda row: "?" if row["vast_id"] is None else str(row["vast_id"])),
    ("stage", lambda row: f"{row['stage']}{', protected' if row['protected'] else ''}"),
    ("since (UTC)", lambda row: _time(row, "stage_since")),
    ("gpus", lambda row: gpu(row["num_gpus"], row["gpu_name"])),
    ("price", lambda row: show_rate(_rate(row))),
    ("spent", lambda row: show_usd(row["spent_usd"])),
    ("proofs/h", lambda row: "" if row["proofs_per_hour"] is None else f"{row['proofs_per_hour']:g}"),
    ("at hand", lambda row: "" if row["tasks"] is None else str(row["tasks"])),
    ("said (UTC)", lambda row: _time(row, "reported_at")),
    ("drained by (UTC)", lambda row: _time(row, "drain_by")),
    ("machine", lambda row: str(row["machine_id"])),
    ("key", lambda row: row["key"]),
    ("drained because", lambda row: row["drain_because"]),
)

USAGE_COLUMNS: tuple[Column, ...] = (
    ("hour (UTC)", lambda row: _time(row, "hour")),
    ("model", lambda row: row["model"]),
    ("requests", lambda row: str(row["calls"])),
    ("tokens in", lambda row: f"{row['tokens_in']:,}"),
    ("out", lambda row: f"{row['tokens_out']:,}"),
    ("cached", lambda row: f"{row['tokens_cached']:,}"),
    ("cost", lambda row: show_usd(row["cost_usd"])),
    ("our count", lambda row: f"{row['estimate']:,}"),
    ("the server's", lambda row: f"{row['reported']:,}"),
    ("as before", lambda row: f"{row['chars_as_before'] / row['chars']:.0%}" if row["chars"] else ""),
)

BAN_COLUMNS: tuple[Column, ...] = (
    ("machine", lambda row: str(row["machine_id"])),
    ("banned until (UTC)", lambda row: f"{row['expires_at']:%Y-%m-%d %H:%M}"),
    ("because it is", lambda row: row["failure"]),
    ("by", lambda row: row["banned_by"]),
    ("reason", lambda row: row["reason"]),
)

HOST_COLUMNS: tuple[Column, ...] = (
    ("machine", lambda row: str(row["machine_id"])),
    ("gpus", lambda row: gpu(row["num_gpus"], row["gpu_name"])),
    ("best proofs/h", lambda row: "" if row["best_proofs_per_hour"] is None else f"{row['best_proofs_per_hour']:g}"),
    ("measured (UTC)", lambda row: _time(row, "measured_at")),
    ("failures", lambda row: ", ".join(f"{count} {failure}" for failure, count in row["failures"].items())),
    ("the last one (UTC)", lambda row: _time(row, "failed_at")),
    ("reason", lambda row: row["last_failure"]),
)

WAKE_COLUMNS: tuple[Column, ...] = (
    ("id", lambda row: str(row["id"])),
    ("at (UTC)", lambda row: _time(row, "wake_at")),
    ("status", lambda row: row["status"]),
    ("run", lambda row: f"#{row['claimed_by_run']}" if row["claimed_by_run"] else ""),
    ("asked by", lambda row: row["asked_by"]),
    ("reason", lambda row: row["reason"]),
)

INBOX_COLUMNS: tuple[Column, ...] = (
    ("id", lambda row: str(row["id"])),
    ("at (UTC)", lambda row: _time(row, "received_at")),
    ("priority", lambda row: Priority(row["priority"]).name.lower()),
    ("kind", lambda row: row["kind"] + (f" ×{row['count']}" if row["count"] > 1 else "")),
    ("source", lambda row: row["source"]),
    ("state", _state),
    ("text", lambda row: row["text"]),
)


def _plain(value: object) -> object:
    """Money as plain numbers, times as ISO with offset, durations in seconds."""
    match value:
        case Decimal():
            return float(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case _:
            return str(value)
