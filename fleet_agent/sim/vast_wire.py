"""How the market looks on the wire: rows of offers and instances, and the provider's filters, ordering and paging.

Pure functions from the world to JSON values. Field names, units and quirks are those of vast.ai's public API: RAM in
MB, `duration` in seconds, status fields that disagree on purpose, `extra_env` as a list of pairs, numbers in filters
that arrive as strings.
"""

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cmp_to_key
from typing import Any, cast

from fleet_agent.sim import boxes
from fleet_agent.sim.market import Charge, Instance, Lot, Market, Offer, Trouble

Json = dict[str, Any]

PAGE_MOST = 25
"""Larger limits are cut down without a word: the trap for a client that does not follow `next_token`."""

SEARCH_DIRECTIVES = frozenset({"order", "type", "limit", "allocated_storage", "disable_bundling"})
LISTABLE_COLUMNS = frozenset({
    "id", "actual_status", "intended_status", "cur_state", "label", "gpu_name", "verification", "machine_id", "host_id",
    "start_date",
})  # fmt: skip
"""The columns of the contract; those computed for a reply (dph_total, num_gpus, ...) can neither filter nor order."""


class BadQuery(ValueError):
    """A filter, an order or a token that the provider answers with 400 and `code`."""

    def __init__(self, sentence: str, code: str = "invalid_request") -> None:
        super().__init__(sentence)
        self.code = code


# --- rows -------------------------------------------------------------------------------------------------------------


def offer_row(offer: Offer, *, now: datetime, bid: bool, disk_gb: Decimal) -> Json:
    """One search result. As a bid the price is what wins the GPUs today; `dph_total` includes the disk asked for."""
    lot, machine = offer.lot, offer.lot.machine
    gpu = machine.gpu
    num_gpus = machine.gpus_per_lot
    gpu_price = offer.min_bid_usd_per_hour if bid else lot.usd_per_hour
    disk_price = lot.disk_usd_per_hour(disk_gb)
    total = float(gpu_price + disk_price)
    dlperf = round(gpu.dlperf * num_gpus, 2)
    return _lot_columns(lot) | {
        "id": lot.ask_id,
        "ask_contract_id": lot.ask_id,
        "bundle_id": lot.ask_id + 1_000_000,
        "allocated_storage": float(disk_gb),
        "dph_base": float(gpu_price),
        "dph_total": total,
        "discounted_dph_total": total,
        "storage_total_cost": float(disk_price),
        "search": {"gpuCostPerHour": float(gpu_price), "diskHour": float(disk_price), "totalHour": total},
        "min_bid": float(offer.min_bid_usd_per_hour),
        "is_bid": bid,
        "rentable": offer.rentable,
        "rented": not offer.rentable,
        "external": False,
        "start_date": offer.ends_at.timestamp() - machine.offered_for.total_seconds(),
        "end_date": offer.ends_at.timestamp(),
        "duration": (offer.ends_at - now).total_seconds(),
        "dlperf": dlperf,
        "dlperf_per_dphtotal": round(dlperf / total, 2),
        "total_flops": round(gpu.tflops * num_gpus, 2),
        "flops_per_dphtotal": round(gpu.tflops * num_gpus / total, 2),
        "score": round(dlperf / total * machine.reliability**4, 3),
        "resource_type": "gpu",
        "credit_discount_max": 0.0,
    }


def instance_row(box: Instance, *, now: datetime, market: Market) -> Json:
    """One rented box, as a read at `now` shows it."""
    machine, order, status = box.machine, box.order, box.actual_status
    running = status == "running"
    proving = running and boxes.stage(market, box, now) == "proving"
    ssh_port = 10_000 + box.id % 40_000
    return _lot_columns(box.lot) | {
        "id": box.id,
        "label": order.label,
        "actual_status": status,
        "intended_status": box.intended_status,
        "cur_state": box.cur_state,
        "next_state": box.intended_status,
        "status_msg": status_message(box, now),
        "is_bid": box.is_bid,
        "dph_base": float(box.gpu_usd_per_hour),
        "dph_total": float(box.gpu_usd_per_hour + box.disk_usd_per_hour),
        "storage_total_cost": float(box.disk_usd_per_hour),
        "min_bid": float(box.lot.reserve_usd_per_hour),
        "start_date": box.created_at.timestamp(),
        "end_date": box.ends_at.timestamp(),
        "duration": (now - box.created_at).total_seconds(),
        "uptime_mins": (now - box.segments[-1].since).total_seconds() / 60 if running else None,
        "image_uuid": order.image,
        "image_runtype": order.runtype,
        "image_args": order.args,
        "onstart": order.onstart,
        "extra_env": [[name, value] for name, value in order.env.items()],
        "disk_space": float(order.disk_gb),
        "disk_usage": float(order.disk_gb) * 0.4 if box.has_run else None,
        "disk_util": 0.4 if box.has_run else None,
        "gpu_util": 97.0 if proving else 0.0,
        "gpu_temp": 71.0 if proving else 38.0,
        "cpu_util": 0.62 if proving else 0.02,
        "mem_limit": machine.cpu_ram_mb * machine.share / 1024,
        "mem_usage": machine.cpu_ram_mb * machine.share / 1024 * (0.8 if proving else 0.05),
        "ssh_host": f"ssh{box.id % 9 + 1}.vast.example",
        "ssh_port": ssh_port,
        "ssh_idx": str(box.id % 9 + 1),
        "ports": {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(ssh_port)}]} if running else None,  # noqa: S104
        "direct_port_start": ssh_port,
        "direct_port_end": ssh_port + 9,
        "local_ipaddrs": None,
        "volume_info": [],
        "template_id": None,
        "template_hash_id": None,
        "template_name": None,
    }


def status_message(box: Instance, now: datetime) -> str | None:
    """What the host says about a box; for a box in trouble it keeps changing, as a stalled pull does."""
    segment = box.segments[-1]
    seconds = (now - segment.since).total_seconds()
    if box.trouble and segment.status == box.trouble.stops_at:
        return _complaint(box.trouble, seconds)
    match segment.status:
        case "loading":
            layers = ("Pulling fs layer", "Downloading", "Extracting")
            return f"{layers[int(seconds // 20) % len(layers)]} {box.order.image}"
        case "running":
            return f"success, running {box.order.image}/{box.order.runtype}"
        case "exited":
            return "Exited (1)"
        case "stopped" if box.intended_status == "running":
            return "waiting for the GPUs"
        case _:
            return None


def _complaint(trouble: Trouble, seconds: float) -> str:
    return trouble.message.format(seconds=10 - int(seconds) % 10)


def charge_row(days: Sequence[tuple[datetime, Charge]]) -> Json:
    """One contract with what it cost on these UTC days, each told by its first instant, and what it was spent on.

    `start` and `end` are the first and the last of them, and dollars have three decimals.
    """
    stretch, box = (days[0][0], days[-1][0]), days[0][1].instance
    spent_on = {
        "gpu": sum((day.gpu_usd for _, day in days), Decimal(0)),
        "disk": sum((day.disk_usd for _, day in days), Decimal(0)),
        "bwd": sum((day.traffic_usd for _, day in days), Decimal(0)),
    }
    told = f"Instance {box.id} Charges - {(stretch[1] - stretch[0]).days + 1} days"
    return _billing_row(stretch, "instance", f"instance-{box.id}", told, sum(spent_on.values(), Decimal(0))) | {
        "metadata": {"label": box.label} if box.label else {},
        "items": [_billing_row(stretch, kind, None, "", usd) for kind, usd in spent_on.items() if usd],
    }


def _billing_row(
    stretch: tuple[datetime, datetime], kind: str, source: str | None, description: str, usd: Decimal
) -> Json:
    return {
        "start": int(stretch[0].timestamp()),
        "end": int(stretch[1].timestamp()),
        "type": kind,
        "source": source,
        "description": description,
        "amount": round(float(usd), 3),
        "metadata": {},
        "items": [],
    }


def invoice_row(number: int, at: datetime, usd: Decimal) -> Json:
    """One deposit. Money taken away is shown as a negative one."""
    return {
        "start": at.timestamp(),
        "end": at.timestamp(),
        "type": "credit",
        "source": "stripe_payments",
        "description": "Credit",
        "amount": float(usd),
        "metadata": {"invoice_id": number},
        "items": [],
    }


def _lot_columns(lot: Lot) -> Json:
    """What offers and instances have in common: the machine, or the lot's share of it."""
    machine, gpu, num_gpus = lot.machine, lot.machine.gpu, lot.machine.gpus_per_lot
    return {
        "machine_id": machine.machine_id,
        "host_id": machine.host_id,
        "hosting_type": 1 if machine.datacenter else 0,
        "num_gpus": num_gpus,
        "gpu_name": gpu.name,
        "gpu_arch": "nvidia",
        "gpu_ram": gpu.ram_mb,
        "gpu_total_ram": gpu.ram_mb * num_gpus,
        "gpu_frac": machine.share,
        "gpu_lanes": 16,
        "gpu_mem_bw": gpu.mem_bw_gb_per_s,
        "gpu_max_power": float(gpu.max_power_w),
        "gpu_max_temp": 90.0,
        "gpu_display_active": False,
        "bw_nvlink": 0.0,
        "compute_cap": gpu.compute_cap,
        "cuda_max_good": machine.cuda_max_good,
        "driver_version": machine.driver_version,
        "driver_vers": _driver_number(machine.driver_version),
        "cpu_name": machine.cpu_name,
        "cpu_arch": "amd64",
        "cpu_cores": machine.cpu_cores,
        "cpu_cores_effective": machine.cpu_cores * machine.share,
        "cpu_ghz": 3.2,
        "cpu_ram": machine.cpu_ram_mb,
        "has_avx": 1,
        "disk_name": "nvme",
        "disk_space": machine.disk_gb * machine.share,
        "disk_bw": machine.disk_mb_per_s,
        "inet_down": machine.down_mbit_per_s,
        "inet_up": machine.up_mbit_per_s,
        "inet_down_cost": float(machine.usd_per_gb_down),
        "inet_up_cost": float(machine.usd_per_gb_up),
        "internet_down_cost_per_tb": float(machine.usd_per_gb_down * 1024),
        "internet_up_cost_per_tb": float(machine.usd_per_gb_up * 1024),
        "storage_cost": float(machine.usd_per_gb_month),
        "pci_gen": 4.0,
        "pcie_bw": 24.6,
        "mobo_name": "simulated",
        "os_version": "22.04",
        "reliability": machine.reliability,
        "reliability2": machine.reliability,
        "expected_reliability": machine.reliability,
        "verification": machine.verification,
        "vericode": 1 if machine.verification == "verified" else 0,
        "geolocation": machine.geolocation,
        "geolocode": sum(machine.geolocation[-2:].encode()),
        "public_ipaddr": machine.public_ip,
        "static_ip": machine.static_ip,
        "direct_port_count": 100 if machine.static_ip else 8,
        "hostname": None,
        "vms_enabled": False,
        "is_vm_deverified": False,
        "cluster_id": None,
        "avail_vol_ask_id": None,
        "avail_vol_dph": None,
        "avail_vol_size": None,
    }


def _driver_number(version: str) -> int:
    """535.86.05 is 535086005: the form in which driver versions are compared."""
    return int("".join(part.zfill(3) for part in version.split(".")))


# --- filters, order, pages --------------------------------------------------------------------------------------------


def searched(rows: Sequence[Json], query: Mapping[str, Any]) -> list[Json]:
    """The rows that a search asks for, in the order and number that it asks for. Raises BadQuery."""
    filters = {name: wanted for name, wanted in query.items() if name not in SEARCH_DIRECTIVES}
    order = cast("list[tuple[str, str]]", query.get("order") or [])
    views = [(row | _search_only_columns(row), row) for row in rows]
    matching = [(view, row) for view, row in views if satisfies(view, filters)]
    if rows and not all(column in views[0][0] for column, _ in order):
        raise BadQuery(f"cannot order by {order}")
    found = [row for _, row in sorted(matching, key=cmp_to_key(lambda a, b: _compare(a[0], b[0], order)))]
    limit = query.get("limit")
    return found if limit is None else found[: int(limit)]


def _search_only_columns(row: Json) -> Json:
    """Fields that a search compares otherwise than it shows them, or does not show at all."""
    return {
        "verified": row["verification"] == "verified",
        "datacenter": row["hosting_type"] == 1,
        "geolocation": row["geolocation"][-2:],
        "driver_version": row["driver_vers"],
        "ubuntu_version": row["os_version"],
    }


def listed(
    rows: Sequence[Json],
    *,
    filters: Mapping[str, Any],
    order: Sequence[tuple[str, str]],
    limit: int,
    after_token: str | None,
    columns: Sequence[str] | None,
) -> Json:
    """One page of the account's instances in the provider's envelope. Raises BadQuery."""
    order = [*order, ("id", "asc")]
    for column in [*filters, *(column for column, _ in order)]:
        if column not in LISTABLE_COLUMNS:
            raise BadQuery(f"invalid column {column!r}")
    matching = [row for row in rows if satisfies(row, filters)]
    page, next_token = paged(matching, order=order, limit=limit, after_token=after_token)
    return {
        "success": True,
        "instances_found": len(page),
        "total_instances": len(matching),
        "label_counts": Counter(row["label"] or "" for row in matching),
        "next_token": next_token,
        "instances": [_narrowed(row, columns) for row in page],
    }


def _narrowed(row: Json, columns: Sequence[str] | None) -> Json:
    return row if columns is None or "*" in columns else {column: row.get(column) for column in columns}


def paged(
    rows: Sequence[Json], *, order: Sequence[tuple[str, str]], limit: int, after_token: str | None
) -> tuple[list[Json], str | None]:
    """The rows after a token and the token of the next page: keyset paging, so rows that vanish shift nothing."""
    ranked = sorted(rows, key=cmp_to_key(lambda a, b: _compare(a, b, order)))
    if after_token is not None:
        last = _position(after_token, order)
        ranked = [row for row in ranked if _compare(row, last, order) > 0]
    page = ranked[:limit]
    return page, _token(page[-1], order) if len(ranked) > limit else None


def _token(row: Json, order: Sequence[tuple[str, str]]) -> str:
    return base64.urlsafe_b64encode(json.dumps([row[column] for column, _ in order]).encode()).decode()


def _position(token: str, order: Sequence[tuple[str, str]]) -> Json:
    try:
        values = cast("list[Any]", json.loads(base64.urlsafe_b64decode(token)))
        return dict(zip((column for column, _ in order), values, strict=True))
    except (ValueError, TypeError) as unreadable:
        raise BadQuery("after_token is not a token of this list", "invalid_token") from unreadable


def _compare(a: Json, b: Json, order: Sequence[tuple[str, str]]) -> int:
    for column, direction in order:
        left, right = _rank(a[column]), _rank(b[column])
        if left != right:
            return (1 if left > right else -1) * (-1 if direction == "desc" else 1)
    return 0


def _rank(value: Any) -> tuple[bool, Any]:
    return (value is None, 0 if value is None else value)


def satisfies(row: Json, filters: Mapping[str, Any]) -> bool:
    """Whether a row passes `{column: {operator: value}}`. Raises BadQuery for what the provider does not know."""
    for column, conditions in filters.items():
        if column not in row:
            raise BadQuery(f"unknown field {column!r}")
        if not isinstance(conditions, dict):
            raise BadQuery(f"the filter of {column!r} is not an object of operators")
        for operator, wanted in cast("dict[str, Any]", conditions).items():
            if operator not in OPERATORS:
                raise BadQuery(f"unknown operator {operator!r}")
            if not OPERATORS[operator](row[column], wanted):
                return False
    return True


def _equals(value: Any, wanted: Any) -> bool:
    return wanted is None if value is None else wanted is not None and value == _like(value, wanted)


def _is_in(value: Any, wanted: Any) -> bool:
    return any(_equals(value, one) for one in wanted)


def _like(value: Any, wanted: Any) -> Any:
    """`wanted` in the type of the column: the official client sends most numbers as strings."""
    if isinstance(value, bool):
        return wanted in (True, "true", "True", "1", 1)
    if isinstance(value, int | float):
        try:
            return float(wanted)
        except (TypeError, ValueError) as not_a_number:
            raise BadQuery(f"{wanted!r} is not a number") from not_a_number
    return wanted


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": _equals,
    "neq": lambda value, wanted: not _equals(value, wanted),
    "gt": lambda value, wanted: value is not None and value > _like(value, wanted),
    "gte": lambda value, wanted: value is not None and value >= _like(value, wanted),
    "lt": lambda value, wanted: value is not None and value < _like(value, wanted),
    "lte": lambda value, wanted: value is not None and value <= _like(value, wanted),
    "in": _is_in,
    "notin": lambda value, wanted: not _is_in(value, wanted),
}
