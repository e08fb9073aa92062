"""Addresses are judged before anything is sent to them.

The HTTP libraries take an address with a port that is none and fail only later, within a group of errors that names
neither the address nor the setting it came from.
"""

from __future__ import annotations

import httpx

from fleet_agent.errors import FixSetup

PORTS = range(1, 65_536)


def usable_address(url: str, setting: str) -> str:
    """`url`, if a server can be called there. Raises FixSetup that names `setting`, and not `url`: it may hold a
    password."""
    if fault := address_fault(url):
        raise FixSetup(f"{setting} is no address of a server: {fault}", f"correct {setting}")
    return url


def address_fault(url: str) -> str | None:
    """Why no server can be called at `url`, or None."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        return "its host or port cannot be read"
    if not address.host:
        return "it names no host"
    if address.port is not None and address.port not in PORTS:
        return f"there is no port {address.port}"
    return None
