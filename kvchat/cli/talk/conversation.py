"""`kvchat ask` without a question, on a terminal: one question after the other, warm in between, until Ctrl+D."""

from __future__ import annotations

import signal
from contextlib import suppress

from kvchat.cli import owned
from kvchat.cli.options import AskOptions
from kvchat.cli.talk.ask import Talk, open_talk
from kvchat.cli.terminal import current_terminal, remark
from kvchat.errors import KvchatError
from kvchat.words.language import N_, _
from kvchat.words.safe_text import calm
from kvchat.words.wording import one_line

PROMPT = "> "
_ENDS = N_("Ctrl+C stops a reply, Ctrl+D ends.")


def run(options: AskOptions) -> int:
    """Talk until the user ends it. Returns the exit code. Raises KvchatError when it cannot begin."""
    signal.set_wakeup_fd(-1)  # Ctrl+C ends nothing here: that nobody comes to an end for it is no fault
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(ImportError):  # Windows has its own
        import readline  # noqa: F401  # input() edits lines with it
    return owned.run("talk", options)


async def talk(options: AskOptions, commands: owned.Commands) -> int:
    """Answer what is typed until it ends. Returns the exit code. Raises KvchatError when it cannot begin."""
    terminal = current_terminal.get()
    assert terminal is not None
    async with open_talk(options, commands) as talk:
        talk.printer.tells_saves = False
        terminal.stop = talk.stop
        title = one_line(calm(await talk.title()))
        remark(f"{f'“{title}”. ' if title else ''}{_(_ENDS)}")
        while (question := await terminal.read_line(PROMPT)) is not None:
            if question.strip():
                await _answer(talk, question)
            else:
                remark(_(_ENDS))
        if commands.is_own and (unfinished := talk.runtime.unfinished):
            words = unfinished.words
            remark(_("saving the memory of this chat ({words}); Ctrl+C ends kvchat without it", words=words))
            terminal.stop = talk.runtime.give_up_saving
            await talk.runtime.chat.idle()
    return 0


async def _answer(talk: Talk, question: str) -> None:
    """Have it answered. What fails is said, and the next question may be asked."""
    try:
        await talk.ask(question)
    except KvchatError as error:
        remark("\n  ".join(filter(None, (error.title, error.detail, error.advice))))
