"""`bringup run` over the real engine: see README.md."""
