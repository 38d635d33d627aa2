"""The few things a chaos run asks a Kubernetes API server, with its pod's service account."""
