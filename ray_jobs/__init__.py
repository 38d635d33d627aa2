"""Who serves and who attacks: Ray Serve application, chaos actors and the command line."""

if __name__ != "tocsin.ray_jobs":
    raise ImportError(f"import tocsin.ray_jobs, not {__name__}: this folder is a part of tocsin")
