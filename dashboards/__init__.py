"""Who is told: metrics, alerts and panels."""

if __name__ != "tocsin.dashboards":
    raise ImportError(f"import tocsin.dashboards, not {__name__}: this folder is a part of tocsin")
