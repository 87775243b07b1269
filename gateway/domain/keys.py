"""What a key says about its content."""

from __future__ import annotations

# One rule for the verdict key and for the denylist: were they to differ, a verdict of "a." could be lent to "a.exe.".
from processing.content_types import extension

__all__ = ["extension"]
