"""Monitoring of the gateway: metrics, backlog alerts, logs and OpenTelemetry spans."""
