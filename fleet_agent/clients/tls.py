"""Which certificates this process trusts: read once, for it takes 50 ms, and a run is to begin in half a second."""

from __future__ import annotations

import functools
import ssl

import httpx


@functools.cache
def trusted() -> ssl.SSLContext:
    """What httpx trusts: SSL_CERT_FILE or SSL_CERT_DIR where they are set, else the bundle that comes with it.

    A process that lives on does not see a bundle that is replaced; the worker begins anew now and then.
    """
    return httpx.create_ssl_context()
