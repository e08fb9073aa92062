"""A home for Prefect that is not the developer's: it makes one as soon as it is imported, wherever it is told to."""

import atexit
import os
import tempfile

_home = tempfile.TemporaryDirectory(prefix="fleet-agent-test-prefect-")
atexit.register(_home.cleanup)
os.environ["PREFECT_HOME"] = _home.name
