"""The founding story's model for a real SGLang 0.5.9 on a CPU: an external model package, see `tiny`."""
