"""Share of the prompt restored after a restart, by the user's next action."""

from typing import Any

from kvchat.chat.record.messages import Role
from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import BenchReply, bench_home
from kvchat.cli.terminal import print_err

REPLY_TOKENS = 12
QUESTIONS = ("Who was first?", "And who came after that?", "Was it a long day?")
EDITED, BRANCHED = "Was it a short day?", "And who was last?"


async def measure(options: BenchOptions) -> dict[str, Any]:
    """Measure two turns, a third one hot, and every possible next step, each after a restart.

    `outputs_agree`: greedy replies equal the hot one. Raises KvchatError.
    """
    async with bench_home(options, reply_tokens=REPLY_TOKENS) as home:
        chat = await home.runtime.chat.new_conversation(await home.make_notes(options.tokens))
        print_err(f"Building a chat of about {options.tokens:,} tokens …")
        for question in QUESTIONS[:2]:
            await home.ask(chat.id, question)
        hot = await home.ask(chat.id, QUESTIONS[2], save=False)
        replies: dict[str, BenchReply] = {}
        for name in ("next turn", "regenerate", "edit", "branch"):
            print_err(f"After a restart: {name} …")
            await home.restart()
            questions = [message for message in await home.runtime.chat.messages(chat.id) if message.role is Role.USER]
            if name == "edit":
                replies[name] = await home.wait_for(home.runtime.chat.edit(questions[2], EDITED, home.greedy_sampling))
            elif name == "branch":
                replies[name] = await home.wait_for(
                    home.runtime.chat.edit(questions[1], BRANCHED, home.greedy_sampling)
                )
            else:
                replies[name] = await home.ask(chat.id, None)
    return {
        "hot": _step("hot", hot),
        "steps": [_step(name, reply) for name, reply in replies.items()],
        "outputs_agree": hot.text == replies["next turn"].text == replies["regenerate"].text,
    }


def _step(name: str, reply: BenchReply) -> dict[str, Any]:
    receipt = reply.receipt
    return {
        "name": name,
        "cached_tokens": receipt.cached_tokens,
        "prompt_tokens": receipt.prompt_tokens,
        "source": receipt.source,
        "miss_reason": receipt.miss_reason.english if receipt.miss_reason else None,
    }
