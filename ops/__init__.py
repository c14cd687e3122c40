"""How the system is seen and run: telemetry, metrics, logs, reports and benchmarks. Knows the messages only."""
