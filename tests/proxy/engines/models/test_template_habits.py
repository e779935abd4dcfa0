"""What a chat template does to earlier turns. The lines are invented after those of real ones."""

import pytest

from slowtok.proxy.engines.drivers.llama_server import habits_of

QWEN = """
{%- if loop.index0 > ns.last_query_index %}{{- '<think>' + reasoning_content }}{%- endif %}
"""
DEEPSEEK = (
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
)
MISTRAL = """
{%- if tools is not none and (message == user_messages[-1]) %}
{{- "[AVAILABLE_TOOLS] [" }}
"""
LLAMA = "{%- set date_string = strftime_now('%d %b %Y') %}"
CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "habits"),
    [
        (QWEN, ("thinking",)),
        (DEEPSEEK, ("thinking",)),
        (MISTRAL, ("tools-last",)),
        (LLAMA, ("clock",)),
        (QWEN + LLAMA, ("thinking", "clock")),
        (CHATML, ()),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_habits(template: object, habits: tuple[str, ...] | None) -> None:
    assert habits_of(template) == habits
