"""JSON for programs, which a terminal may show, too."""

from typing import Any

import orjson

from slowtok.proxy.outputs.log import escaped


def json_text(told: Any) -> str:
    """Return it as JSON, indented, without a character that could steer a terminal."""
    return escaped(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
