"""The same experiments on Flower: its messages, our algorithm. Needs the extra `dcfl[flower]`.

The only room that imports flwr.
"""

import os
import sys
from secrets import token_hex

# Read while flwr and Ray are imported, and by the processes that they start.
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # sites install what they run themselves
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it, Ray warns that it will change
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # no page on stdout when an actor dies: clients.jsonl tells
}
# Whoever reaches Ray can run code here, so it listens on loopback alone and requires a token. A
# cluster has its own rules, and its machines must reach each other.
PRIVATE_RAY = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: else 127.0.0.1 means all interfaces
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": token_hex(32),  # else it is written to ~/.ray
}
RAY_CAME_FIRST = "ray" in sys.modules  # it has read its settings already
for name, value in (OFFLINE if os.environ.get("RAY_ADDRESS") else OFFLINE | PRIVATE_RAY).items():
    os.environ.setdefault(name, value)
