"""A chat template that is hostile to those who say certain things."""

from __future__ import annotations

KINDS = ("loop", "forever", "text", "json", "macro", "memory")

_BOTH = "{% set a = [[1] * 4000] * 4000 %}{% set b = [[1] * 4000] * 4000 %}"
_DEEP = "{% set a = [[[1] * 4000] * 4000] * 4000 %}"
_DOES = {
    "loop": "{% for a in range(99999) %}{{ [1] * 99999 == [1] * 99999 }}{% endfor %}",
    "forever": _BOTH + "{{ [a] * 9999 == [b] * 9999 }}",  # one operation, which neither ends nor takes memory
    "text": _DEEP + "{{ a | string }}",
    "json": _DEEP + "{{ a | tojson }}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "memory": "{% set n = namespace(a=[]) %}"
    "{% for i in range(999) %}{% set n.a = n.a + ['a' * 9999999 ~ i] %}{% endfor %}",
    "large": "{% set a = [1.5] * 16000000 %}large",
    "many words": "{{ 'word ' * 9000 }}",
    "fail": "{{ 1 / 0 }}",
    "refuse": "{{ raise_exception('not so') }}",
}
HOSTILE = (
    "{{ bos_token }}{% set said = messages[-1].content %}{{ tone }}{% for tool in tools or [] %}{{ tool | tojson }}"
    "{% endfor %}{% if said is none %}"
    + "".join(f"{{% elif said == '{said}' %}}{does}" for said, does in _DOES.items())
    + "{% else %}{% for message in messages %}{{ message.role }}: {{ message.content }}<end>{% endfor %}{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
