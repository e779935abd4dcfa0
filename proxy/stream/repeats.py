"""Events that say what the event before them said, with another piece of text in its place.

Nearly all of a stream is that, and reading it as JSON again would tell nothing new: the dialects
only ask whether there is text. So of a chunk that carried text, all that stands before and after it
is kept, and a chunk of the same bytes around other text needs no reading. What is not exactly so
(another finish, counts, a time that moves on, no text) is read in full, and forgets what was kept,
so that the last thing that was read is always what is said again.
"""

import re

# Keys whose value the dialects use only as text that is there or is not.
_TEXT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|thinking|response|partial_json|delta)": ?"'
    rb'(?=[^"])'
)
# Inside a JSON string. \u is left out: it may be half of a pair, which is no text.
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt])++')
MAX_MISSES = 16  # in a row, after which a stream whose events all differ is left alone


class Repeats:
    """Knows the event before, and finds chunks that only repeat it."""

    __slots__ = ("_after", "_before", "_misses")

    def __init__(self) -> None:
        self._before = self._after = b""
        self._misses = 0

    def count(self, chunk: bytes) -> int:
        """Return how many events `chunk` is if each repeats the one that was learned, else 0."""
        after = self._after
        if not after or not chunk.endswith(after):
            return 0
        before = self._before
        start = len(before)
        events = chunk[: -len(after)].split(after)
        for event in events:
            if not event.startswith(before) or not _is_text(event[start:]):
                return 0
        self._misses = 0
        return len(events)

    def learn(self, chunk: bytes) -> None:
        """Keep the one event that `chunk` is; it carried text and was read in full."""
        self.forget()
        if self._misses >= MAX_MISSES:
            return
        self._misses += 1
        key = _TEXT.search(chunk)
        if key is None or b"\\" in chunk[: key.end()]:
            return  # after a backslash a quote may be text
        text = _PLAIN.match(chunk, key.end())
        if text is not None and chunk.startswith(b'"', text.end()):
            self._before, self._after = chunk[: key.end()], chunk[text.end() :]

    def forget(self) -> None:
        """Something else was said: nothing repeats it."""
        self._before = self._after = b""


def _is_text(text: bytes) -> bool:
    """Say whether `text` is a JSON string's inside that is not empty, and valid UTF-8."""
    if _PLAIN.fullmatch(text) is None:
        return False
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False
