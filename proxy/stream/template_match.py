"""Recognises events that equal the previous one except for their text, to avoid parsing JSON.

Nearly all events of a stream do, and parsing them would yield nothing new: the dialects only check
whether there is text. So the bytes before and after the text of the last parsed event are kept as a
template, and an event that matches it counts as a token. Anything else (a finish reason, counts, a
timestamp that changes, no text) is parsed, and replaces or clears the template. So what is repeated
is always the event that was parsed last.
"""

import re

# Keys whose value the dialects use only as text that is there or is not. In valid JSON the quote
# after such a key and its colon always opens a string.
_TEXT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|thinking|response|partial_json|delta)": ?"'
    rb'(?=[^"])'
)
# Inside a JSON string. \u is left out: it may be half of a pair, which is no text.
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt])++')
MAX_MISSES = 16  # in a row, after which a stream whose events all differ is left alone


class RepeatMatcher:
    """Keeps the template of the last parsed event, and finds the events that repeat it.

    `frame` are the bytes before and after an event on the wire.
    """

    __slots__ = (
        "_after_in_chunk",
        "_before_in_chunk",
        "_frame",
        "_misses",
    )

    def __init__(self, frame: tuple[bytes, bytes]) -> None:
        self._frame = frame
        self._misses = 0
        self.forget()

    def count(self, chunk: bytes) -> int:
        """Return the number of events if `chunk` consists of complete repeats only, else 0."""
        before, after = self._before_in_chunk, self._after_in_chunk
        if not after or not chunk.endswith(after) or not chunk.startswith(before):
            return 0
        begin, end = len(before), len(chunk) - len(after)
        if end - begin < len(before) + len(after):  # too short for two, as is nearly always so
            if _PLAIN.fullmatch(chunk, begin, end) is None:
                return 0
            count = 1 if chunk.isascii() or _is_utf8(chunk[begin:end]) else 0
        else:
            texts = chunk[begin:end].split(after + before)
            count = len(texts) if _are_texts(texts) else 0
        if count:
            self._misses = 0
        return count

    def hold(self, event: bytes) -> bool:
        """Return True if an event repeats the last parsed one."""
        before = self._before_in_chunk[len(self._frame[0]) :]
        after = self._after_in_chunk.removesuffix(self._frame[1])
        if not after or not (event.startswith(before) and event.endswith(after)):
            return False
        if not _is_text(event[len(before) : -len(after)]):
            return False
        self._misses = 0
        return True

    def learn(self, event: bytes) -> None:
        """Make a parsed event that carried text the template."""
        self.forget()
        if self._misses >= MAX_MISSES or b"\n" in event or b"\r" in event:
            return  # one of several lines is framed otherwise
        self._misses += 1
        key = _TEXT.search(event)
        if key is None:
            return
        text = _PLAIN.match(event, key.end())
        if text is not None and event.startswith(b'"', text.end()):
            self._before_in_chunk = self._frame[0] + event[: key.end()]
            self._after_in_chunk = event[text.end() :] + self._frame[1]

    def forget(self) -> None:
        """Clear the template, because another kind of event was parsed."""
        self._before_in_chunk = self._after_in_chunk = b""


def _are_texts(texts: list[bytes]) -> bool:
    """Return True if each is such a text; many plain ones are checked as one."""
    together = b"".join(texts)
    if (
        b"\\" in together or not together.isascii()
    ):  # what is one sign may begin in one, end in another
        return all(map(_is_text, texts))
    return b"" not in texts and _PLAIN.fullmatch(together) is not None


def _is_text(text: bytes) -> bool:
    """Return True if `text` is the inside of a non-empty JSON string, and valid UTF-8."""
    return _PLAIN.fullmatch(text) is not None and _is_utf8(text)


def _is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False
