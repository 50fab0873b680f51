"""The tree as OpenTelemetry traces."""
