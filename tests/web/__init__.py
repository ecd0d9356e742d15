"""The web API: real servers on loopback, real processes, real event streams."""
