"""What carries: the bus, the actors' common life, the launcher, the run file and the CLI. Never imports torch."""
