"""What is right: checks of every operator, the gate that holds tokens, and recovery."""

if __name__ != "tocsin.checker":
    raise ImportError(f"import tocsin.checker, not {__name__}: this folder is a part of tocsin")
