"""A request's prompt as canonical messages: the text that an engine's prompt cache compares.

The texts exist only while they are fingerprinted. Left out is what no engine reads: cache markers
that move from message to message, and whether a text was a string or a list of parts. Images, audio
and files are represented by as many characters as their tokens would take: a photograph of 2 MB is
a thousand tokens, not half a million. Its size in pixels is read from the first bytes of its file.
"""

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

CHARS_PER_TOKEN = 4
"""Of plain English in most vocabularies; only how images stand beside text rests on it."""

IMAGE_TOKENS = 1024
PIXELS_PER_TOKEN = 28 * 28
MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS = 64, 4096
"""A patch of 28 x 28 pixels is a token to Qwen2-VL and its successors, which scale images into
4 to 16,384 of them; Gemma 3 takes 256 whatever the size, LLaVA 1.5 takes 576. Where an image does
not tell its size, something in the middle. Heuristic."""

MIN_BLOB_CHARS = 256  # a shorter text in base64 is an identifier; heuristic
_BLOB_KEYS = frozenset({"data", "file_data", "images"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
_REASONING_KEYS = frozenset({"reasoning_content", "reasoning", "reasoning_details", "thinking"})
_UNREAD_KEYS = frozenset({"cache_control"})  # Anthropic's: it marks, and says nothing
_PLAIN_MESSAGE = frozenset({"role", "content"})
_SYSTEM_FIELDS = ("system", "instructions")  # beside the messages: of Anthropic and of Responses
_HEAD_ROLES = ("system", "developer")
_ROLES = (*_HEAD_ROLES, "user", "assistant", "tool", "function")
_ROLE_OF_ITEM = {  # of Responses, which say no role
    "reasoning": "assistant",
    "function_call": "assistant",
    "function_call_output": "tool",
}
_TAG = re.compile(r"<(/?)([a-z]+(?:[-_][a-z]+)+|env|context|memory|memories)>")
_LETTERS = str.maketrans("0123456789-", "ghijklmnopq")  # so that no digits look like a number

HEAD_CHARS = 131_072  # in base64: a camera's preview picture stands before a JPEG's size
NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})  # of a JPEG's markers from C0 to CF


class PromptMessage(NamedTuple):
    """One message of the canonical prompt.

    `plain` is its text without the model's reasoning, `images` the characters that stand for media.
    """

    role: str
    text: str
    plain: str
    images: int = 0


def messages_of(payload: Mapping[str, Any]) -> list[PromptMessage]:
    """Return the messages in the order of most chat templates: system, tools, the rest.

    Some templates put the tools first; the offset of a difference in them may then be too large.
    """
    messages = [
        _made("system", system)
        for name in _SYSTEM_FIELDS
        if isinstance(system := payload.get(name), (str, list))
    ]
    tools = payload.get("tools")
    for message in _raw_messages(payload):
        if tools and message.get("role") not in _HEAD_ROLES:
            messages.append(_of_tools(tools))
            tools = None
        messages.append(_message(message))
    if tools:
        messages.append(_of_tools(tools))
    if "prompt" in payload and not isinstance(payload.get("messages"), list):
        messages.append(_made("prompt", payload["prompt"], {"images": payload.get("images")}))
    return messages


def without_tagged(text: str) -> str:
    """Return a text without its tagged blocks (reminders, memories, environment).

    Linear in the text's length; a tag that is never closed hides nothing else.
    """
    if "</" not in text:
        return text
    kept, at = [], 0
    opened: tuple[str, int] | None = None
    for tag in _TAG.finditer(text):
        if opened is None:
            opened = None if tag[1] else (tag[2], tag.start())
        elif tag[1] and tag[2] == opened[0]:
            kept.append(text[at : opened[1]])
            at, opened = tag.end(), None
    return "".join((*kept, text[at:]))


def squeezed(text: str) -> str:
    """Return a text without whitespace."""
    return text.replace(" ", "").replace("\n", "").replace("\t", "").replace("\r", "")


def _raw_messages(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages, or the Responses API's items or single text in their place."""
    messages = payload["messages"] if "messages" in payload else payload.get("input")
    if isinstance(messages, str) and "messages" not in payload:
        return [{"role": "user", "content": messages}]
    return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []


def _message(message: Mapping[str, Any]) -> PromptMessage:
    content = message.get("content")
    extra: dict[str, Any] = {}
    if not message.keys() <= _PLAIN_MESSAGE:
        extra = {k: v for k, v in message.items() if k not in _PLAIN_MESSAGE and v}
    role = message.get("role") or _ROLE_OF_ITEM.get(str(message.get("type")))
    if role not in _ROLES:
        role = "other"  # a role could be any text
    if role == "user" and _is_tool_result(content):
        role = "tool"  # Anthropic's
    made = _made(role, content, extra)
    if extra.get("type") == "reasoning":  # an item of Responses
        return made._replace(plain="")
    return made


def _is_tool_result(content: Any) -> bool:
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(part, dict) and part.get("type") == "tool_result" for part in content)
    )


def tools_of(payload: Mapping[str, Any]) -> list[bytes]:
    """Return each tool as JSON with sorted keys."""
    tools = payload.get("tools")
    if not isinstance(tools, list):
        return []
    return [orjson.dumps(_read(tool, []), option=orjson.OPT_SORT_KEYS) for tool in tools]


def _of_tools(tools: Any) -> PromptMessage:
    text = _dumped(_read(tools, []))
    return PromptMessage("tools", text, text)


def _made(role: str, content: Any, extra: Mapping[str, Any] | None = None) -> PromptMessage:
    """Return a message made from its content and its other fields."""
    if isinstance(content, str) and not extra:
        return PromptMessage(role, content, content)
    blobs: list[int] = []
    text, plain = _texts(content, blobs)
    rest = {k: v for k, v in (extra or {}).items() if v and k not in _UNREAD_KEYS}
    if rest:
        thought = {k: v for k, v in rest.items() if k in _REASONING_KEYS}
        other = _read({k: v for k, v in rest.items() if k not in thought}, blobs)
        other_text = _dumped(other) if other else ""
        plain += other_text
        text += (_dumped(_read(thought, blobs)) if thought else "") + other_text
    return PromptMessage(role, text, plain, sum(blobs))


def _texts(content: Any, blobs: list[int]) -> tuple[str, str]:
    """Return the text of a content, with and without reasoning."""
    if content is None:
        return "", ""
    if not isinstance(content, list):
        text = content if isinstance(content, str) else _dumped(_read(content, blobs))
        return text, text
    pieces, plain = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            piece = part["text"]
        else:
            piece = part if isinstance(part, str) else _dumped(_read(part, blobs))
        pieces.append(piece)
        if kind not in _REASONING_PARTS:
            plain.append(piece)
    return "".join(pieces), "".join(plain)


def _dumped(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _read(value: Any, blobs: list[int], *, of_blob: bool = False) -> Any:
    """Return a value as an engine reads it: without markers, with media as placeholder text.

    The placeholders' lengths are added to `blobs`.
    """
    if isinstance(value, dict):
        return {
            name: _read(inner, blobs, of_blob=of_blob or name in _BLOB_KEYS)
            for name, inner in value.items()
            if name not in _UNREAD_KEYS
        }
    if isinstance(value, list):
        return [_read(inner, blobs, of_blob=of_blob) for inner in value]
    if isinstance(value, str) and _is_blob(value, of_blob=of_blob):
        stand_in = _stand_in(value)
        blobs.append(len(stand_in))
        return stand_in
    return value


def _is_blob(text: str, *, of_blob: bool) -> bool:
    if text.startswith("data:"):
        return ";base64," in text[:128]
    return of_blob and len(text) >= MIN_BLOB_CHARS and " " not in text[:MIN_BLOB_CHARS]


def _stand_in(blob: str) -> str:
    """Return a placeholder for an image: as many letters as it takes tokens, unique by a hash."""
    size = image_size(blob.partition(";base64,")[2] or blob)
    tokens = IMAGE_TOKENS if size is None else round(size[0] * size[1] / PIXELS_PER_TOKEN)
    tokens = min(max(tokens, MIN_IMAGE_TOKENS), MAX_IMAGE_TOKENS)
    letters = str(hash(blob)).translate(_LETTERS)
    wanted = tokens * CHARS_PER_TOKEN
    return (letters * (wanted // len(letters) + 1))[:wanted]


def image_size(encoded: str) -> tuple[int, int] | None:
    """Return width and height in pixels of a base64 image; None if its header does not show them.

    PNG, JPEG, GIF and WebP, which are what the APIs take. Sources: PNG (ISO/IEC 15948) 11.2.2, JPEG
    (ITU-T T.81) B.2.2, GIF89a 18, RFC 9649 2.5 to 2.7.
    """
    head = encoded[: min(len(encoded), HEAD_CHARS) // 4 * 4]
    try:
        return size_in(base64.b64decode(head, validate=True))
    except (binascii.Error, ValueError, struct.error):
        return None


def size_in(head: bytes) -> tuple[int, int] | None:
    """Return width and height from the first bytes of an image file.

    Raises:
        struct.error: the bytes end before the size.
    """
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _pair(">II", head, 16)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return _pair("<HH", head, 6)
    if head.startswith(b"\xff\xd8"):
        return _of_jpeg(head)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _of_webp(head)
    return None


def _of_jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in NO_SIZE:
            height, width = _pair(">HH", head, at + 5)
            return width, height
        at += 2 + struct.unpack_from(">H", head, at + 2)[0]
    return None


def _of_webp(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        low, high = struct.unpack_from("<I", head, 24)[0], struct.unpack_from("<I", head, 26)[0]
        return (low & 0xFFFFFF) + 1, (high >> 8) + 1
    if kind == b"VP8 ":
        width, height = _pair("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", head, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _pair(form: str, head: bytes, at: int) -> tuple[int, int]:
    first, second = struct.unpack_from(form, head, at)
    return int(first), int(second)
