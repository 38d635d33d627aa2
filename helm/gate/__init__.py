"""The gate: renders the chart in every shape and holds each object to the rules of a cluster."""
