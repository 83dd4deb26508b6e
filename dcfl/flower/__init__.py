"""The same experiments on Flower: its messages, our algorithm. Needs the extra `dcfl[flower]`.

The only room that imports flwr.
"""

import os

# Read while flwr is imported, and by the processes that it starts.
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # sites install what they run themselves
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it, Ray warns that it will change
}
for name, value in OFFLINE.items():
    os.environ.setdefault(name, value)
