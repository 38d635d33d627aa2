"""Custom resources as the chart writes them: what their APIs take, and no field besides."""
