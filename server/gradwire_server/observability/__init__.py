"""Metrics for Prometheus, traces over OTLP, and logs.

definitions  every metric
cells        arrays of each process's counts and latest errors, shared with the supervisor
recording    phases and metrics of calls
exposition   metrics of all workers, and the text formats of Prometheus
otlp         export of traces with OpenTelemetry, if it is installed and requested
logs         log lines
"""
