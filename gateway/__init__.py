"""An S3-compatible gateway that processes every object before it serves it."""

__version__ = "0.1.0"
