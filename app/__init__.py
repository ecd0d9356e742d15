"""bringup: the doctor for inference servers that do not come up."""

__version__ = "0.1.0"
