"""Where it runs: the Helm chart, what its values are, and the gate that proves what it renders."""

if __name__ != "tocsin.helm":
    raise ImportError(f"import tocsin.helm, not {__name__}: this folder is a part of tocsin")
