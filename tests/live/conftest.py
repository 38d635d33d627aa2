"""Ray is imported here once: its imports warn, and in tests a warning is an error."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve  # noqa: F401
