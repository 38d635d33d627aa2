"""Who serves and who attacks: Ray Serve application, chaos actors and the command line."""

import os

if __name__ != "tocsin.ray_jobs":
    raise ImportError(f"import tocsin.ray_jobs, not {__name__}: this folder is a part of tocsin")

if not os.environ.get("RAY_ADDRESS"):
    # Read when Ray is imported: a cluster of our own stays on loopback, whatever the host's
    # addresses are. (On Linux `_node_ip_address="127.0.0.1"` alone is resolved to another one.)
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
