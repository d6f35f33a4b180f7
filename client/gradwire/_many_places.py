"""Whether the stream of evaluate_many and its calls of their own stand in each other's way.

A server may allow so few streams that the one has the place that the other needs. Whoever is
refused for that has lost no try: it comes once the other has ended.
"""

from __future__ import annotations

from gradwire.errors import GradwireError, OverloadedError


class Places:
    """What one evaluate_many has learned of that.

    crowded  whether calls of their own wait for the stream's end
    """

    def __init__(self) -> None:
        self.crowded = False
        self._beside = False

    def begin_stream(self) -> None:
        """Note that a stream begins."""
        self._beside = False

    def begin_alone(self) -> None:
        """Note that a call of its own begins, beside the stream unless they are crowded."""
        self._beside = self._beside or not self.crowded

    def kept_alone(self, error: GradwireError) -> bool:
        """Whether the stream may have kept a call of its own out; they are crowded from now on."""
        kept = isinstance(error, OverloadedError) and not self.crowded
        self.crowded = self.crowded or kept
        return kept

    def kept_stream(self, error: GradwireError) -> bool:
        """Whether a call beside the stream may have kept it out; they are crowded from now on."""
        kept = isinstance(error, OverloadedError) and self._beside
        self._beside = False
        self.crowded = self.crowded or kept
        return kept
