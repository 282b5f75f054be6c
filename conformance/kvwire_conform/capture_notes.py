"""The words in which a capture tells the checks what no frame can show: notes of a recording, `Record.text`."""

from __future__ import annotations

REPLAY_TIMEOUT = "replay-timeout"
"""A replay answer did not come, or did not end, within its deadline."""
