"""Requests as agents and editors send them, according to their documentation and issues.

Sources: code.claude.com/docs (LLM gateway, settings), anthropics/claude-code#68900, ggml-org/llama.cpp#20623 and #21793
(Claude Code); github.com/openai/codex docs/config.md and #1869 (Codex); docs.cline.bot and cline/cline's prompt docs
(Cline); aider.chat/docs/repomap.html and /docs/usage (Aider); anomalyco/opencode#29672 and #47816 (OpenCode).
"""

import re
from typing import Any
from zlib import crc32

from kvchat.gateway.diagnosis.prompts import Prompt, parse_contents
from kvchat.gateway.dialects.request import Dialect, ParsedRequest

Body = dict[str, Any]
RULES_OF_THE_HOUSE = "\n".join(f"Rule {number}: do one thing at a time, and say what you did." for number in range(60))


def claude_code(
    *turns: dict[str, Any],
    cch: str = "fa690",
    version: str = "2.1.177",
    date: str = "2026-11-22",
    folder: str = "/home/ada/engine",
    tools: Any = None,
) -> Body:
    """`/v1/messages`: the billing header is a separate system block; the date is in a reminder."""
    reminder = f"<system-reminder>\n# currentDate\nToday's date is {date}.\n</system-reminder>"
    header = f"x-anthropic-billing-header: cc_version={version}.01c; cc_entrypoint=cli; cch="
    rules = (
        f"{RULES_OF_THE_HOUSE}\n<env>\nWorking directory: {folder}\nIs directory a git repo: Yes\nPlatform: linux\n"
        "</env>\ngitStatus: This is the git status at the start of the conversation.\nCurrent branch: main"
    )
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 32_000,
        "system": [
            _text(f"{header}{cch};"),
            _text("You are Claude Code, Anthropic's official CLI for Claude."),
            _text(rules) | {"cache_control": {"type": "ephemeral"}},
        ],
        "tools": tools or [_anthropic(name) for name in ("Bash", "Edit", "Read")],
        "messages": [{"role": "user", "content": [_text(reminder), _text("Fix the parser.")]}, *turns],
        "metadata": {"user_id": "user_1_account__session_2"},
        "stream": True,
    }


def codex(*turns: dict[str, Any], date: str = "2026-11-22", folder: str = "/home/ada/engine") -> Body:
    """`/v1/responses`: separate instructions; the environment is in the first user message."""
    around = (
        f"<environment_context>\n  <cwd>{folder}</cwd>\n  <shell>bash</shell>\n"
        f"  <current_date>{date}</current_date>\n  <timezone>Europe/Berlin</timezone>\n</environment_context>"
    )
    return {
        "model": "gpt-5-codex",
        "instructions": "You are Codex, a coding agent in the Codex CLI.\n" + RULES_OF_THE_HOUSE,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": around}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Make the tests pass."}]},
            *turns,
        ],
        "tools": [
            {"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object"}},
            {"type": "function", "name": "apply_patch", "strict": False, "parameters": {"type": "object"}},
        ],
        "reasoning": {"effort": "medium", "summary": "auto"},
        "stream": True,
    }


def cline(*turns: dict[str, Any], time: str = "9:12:15 AM") -> Body:
    """`/v1/chat/completions`: the system prompt lists the tools; each message ends with the environment."""
    details = (
        "<environment_details>\n# Visual Studio Code Visible Files\nsrc/parser.py\n\n"
        f"# Current Time\n11/22/2026, {time} (Europe/Berlin, UTC+1:00)\n\n"
        "# Current Working Directory (/home/ada/engine) Files\nsrc/\n</environment_details>"
    )
    content = [_text("<task>\nFix the parser.\n</task>"), _text(details)]
    system = f"You are Cline, a highly skilled software engineer.\n\n{RULES_OF_THE_HOUSE}"
    return {
        "model": "local",
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": content}, *turns],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def aider(*turns: dict[str, Any], repository: str = "src/parser.py:\n│class Parser:") -> Body:
    """`/v1/chat/completions`: examples, then a map of the repository and the files as earlier messages."""
    said = "Here are summaries of some files present in my git repository.\nDo not propose changes to these files."
    files = "I have *added these files to the chat* so you can go ahead and edit them.\n\nsrc/parser.py\n```\npass\n```"
    return {
        "model": "openai/local",
        "messages": [
            {"role": "system", "content": f"Act as an expert software developer.\n{RULES_OF_THE_HOUSE}"},
            user(f"{said}\n\n{repository}"),
            assistant("Ok, I won't try and edit those files without asking first."),
            user(files),
            assistant("Ok, any changes I propose will be to those files."),
            *turns,
        ],
        "temperature": 0,
        "stream": True,
    }


def opencode(
    *turns: dict[str, Any], date: str = "Sun Nov 22 2026", folder: str = "/home/ada/engine", tools: Any = None
) -> Body:
    """`/v1/chat/completions`: the environment is in the system prompt; ten tools."""
    around = (
        f"<env>\n  Working directory: {folder}\n  Is directory a git repo: yes\n  Platform: linux\n"
        f"  Today's date: {date}\n</env>"
    )
    system = f"You are opencode, an interactive CLI tool.\n{RULES_OF_THE_HOUSE}\n{around}"
    names = ("bash", "edit", "glob", "grep", "list", "read", "task", "todowrite", "webfetch", "write")
    return {
        "model": "local",
        "max_tokens": 32_000,
        "messages": [
            {"role": "system", "content": system},
            *(turns or (user("Explain how the parser recovers from errors."),)),
        ],
        "tools": tools or [function(name) for name in names],
        "tool_choice": "auto",
        "stream": True,
    }


def function(name: str, words: str = "") -> Body:
    """Return a tool definition in the chat dialect."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    told = {"name": name, "description": words or f"{name}: does it", "parameters": parameters}
    return {"type": "function", "function": told}


def system(text: str) -> Body:
    return {"role": "system", "content": text}


def user(text: str) -> Body:
    return {"role": "user", "content": text}


def assistant(text: str, **others: Any) -> Body:
    return {"role": "assistant", "content": text, **others}


def rendered(body: Body, *, day: str = "") -> Prompt:
    """Render a body as a template like Qwen's does, with a token per word."""
    dialect = Dialect.RESPONSES if "input" in body else Dialect.MESSAGES if "system" in body else Dialect.CHAT
    chat = ParsedRequest(dialect, b"", body).chat
    contents = parse_contents(chat)
    tools, system = "".join(f"{definition}\n" for _, definition in contents.tools), "\n".join(contents.system)
    text = f"<|im_start|>system\n{day}{system}\n# Tools\n<tools>\n{tools}</tools><|im_end|>\n"
    last = max((at for at, message in enumerate(contents.messages) if message.role == "user"), default=0)
    for at, message in enumerate(contents.messages):
        reasoning = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning and at > last else ""
        text += f"<|im_start|>{message.role}\n{reasoning}{message.text}<|im_end|>\n"
    text += "<|im_start|>assistant\n"
    return Prompt([crc32(word.encode()) % 30_000 for word in re.findall(r"\w+|\W", text)], text, chat)


def _anthropic(name: str) -> Body:
    return {"name": name, "description": f"{name}: does it", "input_schema": {"type": "object", "properties": {}}}


def _text(words: str) -> Body:
    return {"type": "text", "text": words}
