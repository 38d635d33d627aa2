"""How fast and how sure: overhead and coverage campaigns."""

if __name__ != "tocsin.bench":
    raise ImportError(f"import tocsin.bench, not {__name__}: this folder is a part of tocsin")
