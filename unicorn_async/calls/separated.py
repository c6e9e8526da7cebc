"""Calls between DeepSeek's marks: a name and the JSON of its arguments with a mark between them.

V3.1 writes NAME SEPARATOR ARGUMENTS between the marks of a call, one call right behind the other, as the section
ToolCall of deepseek-ai/DeepSeek-V3.1's model card has it, and its chat template. R1 and V3 write the word `function`,
the separator, the name, and the arguments in a fence of Markdown, each on lines of their own, with a line's end between
calls, as the chat template of deepseek-ai/DeepSeek-R1-Distill-Llama-8B has it. The bars of the marks are U+FF5C, and
what is between their words U+2581.
"""

CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
SEPARATOR = "<｜tool▁sep｜>"
FENCE = ("\n```json\n", "\n```")
BESIDE = (*CALL, "```")  # what stands before a call or behind its arguments
_WITH_CALLS = ("message['tool_calls'] is defined", "'tool_calls' in message")


def around(name: str, *, is_fenced: bool) -> tuple[str, str]:
    """Return what stands between a call's opening mark and its separator, and between that and the arguments."""
    return ("function", f"{name}{FENCE[0]}") if is_fenced else (name, "")


def called_name(text: str) -> str:
    """Return the name in what comes before the arguments, "" where it can't be told."""
    before, found, behind = text.partition(SEPARATOR)
    if not found:
        return ""
    return behind.strip().removesuffix("```json").removesuffix("```").strip() or before.strip()


def writes_calls(template: str) -> bool:
    """Whether a template that tells the model of no tools writes all calls of a conversation.

    Those of DeepSeek's first models leave out what stands beside a text, or the end of one that is alone.
    """
    return any(text in template for text in _WITH_CALLS)
