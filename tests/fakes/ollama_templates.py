"""Templates that give the demo's model what it was not made for: thinking and tools.

Ollama tells by them what a model can do, and by which marks its thoughts and calls are known.
"""

THINKER = """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ if and .Thinking (eq .Role "assistant") }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
<think>
"""  # noqa: E501 - a line break would be part of it

CALLER = """{{- if .Tools }}<|im_start|>system
Tools: {{ .Tools }}<|im_end|>
{{ end }}{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "parameters": {{ .Function.Arguments }}}{{ end }}<|im_end|>
{{ end }}<|im_start|>assistant
"""  # noqa: E501
