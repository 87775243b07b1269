"""What every upload goes through before it is served.

The first step that blocks ends the run. The engine appends ``finalize_upload``, which turns what was found into the
version's state in one compare-and-swap; it is no activity, so that no configuration can leave it out.
"""

from __future__ import annotations

from processing.activities.embed_text import embed_text
from processing.activities.extension_policy import extension_policy
from processing.activities.extract_text import extract_text
from processing.activities.scan_malware import scan_malware
from processing.activities.sniff_type import sniff_type
from processing.registry import Step, Workflow

POST_UPLOAD = Workflow(
    "post_upload",
    (
        Step("sniff_type", required=True),
        Step("extension_policy", required=True),
        Step("scan_malware", required=True),
        Step("extract_text"),
        Step("embed_text"),
    ),
    finalize="finalize_upload",
)

__all__ = [  # loading this module registers the workflow and its activities
    "POST_UPLOAD",
    "embed_text",
    "extension_policy",
    "extract_text",
    "scan_malware",
    "sniff_type",
]
