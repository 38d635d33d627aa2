"""What can go wrong: faults with evidence, experiments, and the judge of every answer."""

if __name__ != "tocsin.chaos":
    raise ImportError(f"import tocsin.chaos, not {__name__}: this folder is a part of tocsin")
