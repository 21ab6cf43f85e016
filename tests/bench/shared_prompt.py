"""Disk use of many chats on one system prompt and of many short turns, and how soon one more chat answers."""

import dataclasses
import tempfile
from collections.abc import Collection
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil

from kvchat.chat.record.messages import Role
from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import (
    PEOPLE,
    REPLY_TOKENS,
    THINGS,
    BenchReply,
    BenchSetup,
    bench_home,
    median_ttft,
    median_ttft_ratio,
)
from kvchat.cli.terminal import print_err
from kvchat.engine.api.wire import ChatMessage
from kvchat.kvstore.savepoint import common_prefix
from kvchat.tools.tool import Tool, freeze, prompt_tools
from tests.bench.size import write_kv_model

OWN_TOKENS = 200  # of each chat: its question and its reply
CELL_BYTES = 16  # of a token in a slot file, beside its row: its id, position and sequence
ROUNDS = 5  # each with a new chat after a restart and a hot one
GROWTH_REPLY_TOKENS = 24
# Qwen's format for tools, as ChatML: it works with every model that has ChatML's tokens.
TEMPLATE = r"""
{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{% endif %}
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{{ message.content }}
{%- for tool_call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ tool_call.function.name }}", "arguments": {{ tool_call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


async def growth(options: BenchOptions, turns: int) -> dict[str, Any]:
    """Measure the store's bytes after each short turn on a system prompt, compared with the saved slot files.

    `whole_files_bytes`: all slot files so far; `last_file_bytes`: the last one. Raises BenchFailed.
    """
    async with bench_home(options, reply_tokens=GROWTH_REPLY_TOKENS) as home:
        chat = await home.runtime.chat.new_conversation(await home.make_notes(options.tokens))
        disk, written = list[int](), list[int]()
        for turn in range(1, turns + 1):
            print_err(f"Turn {turn} of {turns} …")
            who, what = PEOPLE[turn % len(PEOPLE)], THINGS[turn % len(THINGS)]
            await home.ask(chat.id, f"What did {who} do with the {what} on day {turn * 3}?")
            home.check_save_count(turn)
            usage = await home.runtime.save_points.usage()
            disk.append(usage.physical_bytes)
            written.append(usage.bytes_written)
        files = [saved.bytes for saved in home.saves]
    return {
        "system_tokens": options.tokens,
        "disk_bytes": disk,
        "bytes_written": written,
        "whole_files_bytes": [sum(files[: turn + 1]) for turn in range(turns)],
        "last_file_bytes": files,
    }


async def day(options: BenchOptions, chats: int, replies: int) -> dict[str, Any]:
    """Measure what short replies, over chats in turn, write to disk: kvchat and its engine together (Linux only).

    By default with a generated model. Files in memory do not count. `written_today`: as the Storage window shows it.
    Raises BenchFailed.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or write_kv_model(Path(folder) / "kv.gguf")
        return await _day(dataclasses.replace(options, model=model), chats, replies)


async def _day(options: BenchOptions, chats: int, replies: int) -> dict[str, Any]:
    async with bench_home(options, reply_tokens=GROWTH_REPLY_TOKENS) as home:
        ids = [(await home.runtime.chat.new_conversation()).id for _ in range(chats)]
        row, tokens = (await home.runtime.engine.ready()).kv_bytes_per_token, dict.fromkeys(ids, 0)
        before = _disk_writes()
        for number in range(replies):
            who, what = PEOPLE[number % len(PEOPLE)], THINGS[number % len(THINGS)]
            await home.ask(ids[number % chats], f"What did {who} do with the {what} on day {number}?")
            home.check_save_count(number + 1)
            tokens[ids[number % chats]] = home.saves[-1].tokens
        after, usage = _disk_writes(), await home.runtime.save_points.usage()
    rows = round(sum(tokens.values()) * row)
    written = {name: after[name] - before[name] for name in before}
    return {
        "replies": replies,
        "kv_bytes_per_token": row,
        "new_rows_bytes": rows,
        "written_today": usage.bytes_written_today,
        "write_ratio": usage.bytes_written_today / rows,
        **written,
        "disk_write_ratio": sum(written.values()) / rows,  # with the databases and logs
    }


def _disk_writes() -> dict[str, int]:
    own, *engines = [psutil.Process(), *psutil.Process().children(recursive=True)]
    engine_bytes = sum(process.io_counters().write_bytes for process in engines)
    return {"kvchat_disk_bytes": own.io_counters().write_bytes, "engine_disk_bytes": engine_bytes}


def use_template(home: BenchSetup, template: str) -> None:
    """Have the engine use this chat template from its next start on."""
    file = home.paths.data / "template.jinja"
    file.write_text(template, "utf-8")
    home.settings = dataclasses.replace(home.settings, engine_arguments=f"--chat-template-file {file}")


async def measure(options: BenchOptions, chats: int, tools: Collection[Tool] = ()) -> dict[str, Any]:
    """Measure many chats with one system prompt or the same tools, then a new one after a restart, hot and cold.

    Raises KvchatError. `unique_rows_bytes`: the shared rows once and each chat's own. `state_bytes`: the recurrent
    state and sliding windows of one save point, which no rows replace; `disk_ratio_with_states` allows one such state
    for what the chats share and one for each chat. `restored_…`: sent at once after a restart, restore included;
    `ahead_…`: opened before Send, as in the window. Ratios are to the hot reply of the same round; medians.
    """
    async with bench_home(options) as home:
        if tools:
            use_template(home, TEMPLATE)
            await home.restart()
        system = "" if tools else await home.make_notes(options.tokens)
        for number in range(1, chats + 1):
            print_err(f"Chat {number} of {chats} …")
            text = await home.make_notes(OWN_TOKENS - REPLY_TOKENS, 1000 * number)
            await _new_chat(home, system, tools, f"{number}. {text}", keep=True)
            home.check_save_count(number)
        usage, kept = await home.runtime.save_points.usage(), tuple(home.saves)

        hot, restored, ahead = [], [], []
        for number in range(ROUNDS):
            print_err(f"New chats, round {number + 1} of {ROUNDS}: after a restart, looked at after a restart, hot …")
            await home.restart()
            restored.append(await _new_chat(home, system, tools, _question(3 * number)))
            await home.restart()
            ahead.append(await _new_chat(home, system, tools, _question(3 * number + 1), select=True))
            hot.append(await _new_chat(home, system, tools, _question(3 * number + 2)))

        print_err("A new chat without save points …")
        await home.runtime.save_points.delete(None)
        await home.restart()
        cold = await _new_chat(home, system, tools, _question(3 * ROUNDS))

        loaded = await home.runtime.engine.ready()
        root = ChatMessage(Role.SYSTEM.value, system, tools=prompt_tools(freeze(tools)))
        prompts = [
            await loaded.engine.prompt_tokens([root, ChatMessage(Role.USER.value, _question(number))])
            for number in range(2)
        ]
    shared = common_prefix(*prompts)
    own = [saved.tokens - shared for saved in kept]
    row = loaded.kv_bytes_per_token
    unique = round((shared + sum(own)) * row)
    state = min(saved.bytes - round(saved.tokens * (row + CELL_BYTES)) for saved in kept)
    return {
        "chats": chats,
        "system_tokens": shared,
        "own_tokens": mean(own),
        "disk_bytes": usage.physical_bytes,
        "unique_rows_bytes": unique,
        "disk_ratio": usage.physical_bytes / max(1, unique),
        "state_bytes": state,
        "disk_ratio_with_states": usage.physical_bytes / max(1, unique + (chats + 1) * state),
        "index_and_folder_bytes": usage.other_bytes,  # part of disk_bytes
        "whole_files_bytes": sum(saved.bytes for saved in kept),
        "hot_ttft_ms": median_ttft(hot),
        "restored_ttft_ms": median_ttft(restored),
        "restored_ratio": median_ttft_ratio(restored, hot),
        "restore_ms": median(reply.receipt.restore_ms for reply in restored),
        "ahead_ttft_ms": median_ttft(ahead),
        "ahead_ratio": median_ttft_ratio(ahead, hot),
        "cold_ttft_ms": cold.receipt.ttft_ms,
        "prompt_tokens": restored[0].receipt.prompt_tokens,
        "cached_tokens": min(reply.receipt.cached_tokens for reply in (*restored, *ahead)),
    }


async def _new_chat(
    home: BenchSetup, system: str, tools: Collection[Tool], text: str, *, keep: bool = False, select: bool = False
) -> BenchReply:
    """Return the reply in a new chat; with `select`, the chat is opened and restored before the message is sent."""
    chat = await home.runtime.chat.new_conversation(system)
    if tools:
        await home.runtime.chat.options.change_tools(chat.id, tools)
    if select:
        home.runtime.chat.select(chat.id)
        await home.runtime.chat.wait_until_idle()
    return await home.ask(chat.id, text, save=keep)


def _question(number: int) -> str:
    """Return a question that shares only the system prompt with the others."""
    return f"{PEOPLE[number % len(PEOPLE)]} and the {THINGS[number % len(THINGS)]}: on which day was that?"
