"""Images in a chat with both real engines: warm after a restart like text."""

from dataclasses import replace

import pytest

from kvchat.chat.attachments import picture_attachment
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Message, Role, new_message, prompt_messages
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from kvchat.tools.tool import ToolCall
from tests.e2e.restarts import GREEDY, SYSTEM, App, receipt
from tests.models import seeing, tiny_model
from tests.pictures import png

pytestmark = pytest.mark.e2e

RED, GREEN = picture_attachment("red.png", png(255, 0, 0)), picture_attachment("green.png", png(0, 255, 0))


@pytest.mark.parametrize(
    ("kind", "engine"), [("smollm2", "llama-server"), ("gemma3", "embedded"), ("qwen35", "embedded")]
)
async def test_a_chat_with_images_is_warm_after_a_restart(tmp_path, smollm2, kind, engine):
    model = smollm2 if kind == "smollm2" else tiny_model(kind, {"gemma3": 1024}.get(kind), heeds=True)
    app = App(tmp_path / "home", seeing(model), engine)
    chat = await app.new_chat(SYSTEM)
    await app.run_turn(lambda runtime: runtime.chat.send(chat, "What is this?", GREEDY, attachments=(RED, GREEN)))
    cold_reply = ""

    async def ask_warm_and_cold(runtime: Runtime) -> Message | None:
        nonlocal cold_reply
        reply = await runtime.chat.send(chat, "And the other one?", GREEDY)
        await runtime.chat.wait_until_idle()
        engine = (await runtime.engine.ready()).engine
        await engine.erase_slot()
        asked = prompt_messages((await runtime.chat.messages(chat))[:-1])
        cold_reply = "".join([chunk.text async for chunk in engine.chat(asked, GREEDY)])
        return reply

    reply = await app.run_turn(ask_warm_and_cold)
    assert receipt(reply).source is Source.DISK, receipt(reply)
    assert receipt(reply).cached_tokens >= 0.95 * receipt(reply).prompt_tokens, receipt(reply)
    assert reply.content == cold_reply


async def test_an_image_in_a_tools_result_is_warm_after_a_restart(tmp_path, smollm2):
    app = App(tmp_path / "home", seeing(smollm2), "embedded")
    chat = await app.new_chat(SYSTEM)
    reply = await app.run_turn(lambda runtime: runtime.chat.send(chat, "Look at the screen.", GREEDY))
    call = ToolCall("call-1", "screenshot", "{}")

    async def look(runtime: Runtime) -> Message | None:
        write, result = runtime.chat.turn_context.run, new_message(chat, Role.TOOL, "", attachments=(RED,))
        calling = await write(Database.append_message, replace(reply, calls=(call,)))
        seen = await write(Database.append_message, replace(result, parent_id=calling.id, calls=(call,)))
        return await runtime.chat.regenerate(seen)

    seen = await app.run_turn(look)
    assert receipt(seen).cached_tokens >= 0.95 * receipt(reply).prompt_tokens, receipt(seen)
    after = await app.run_turn(lambda runtime: runtime.chat.send(chat, "And now?", GREEDY))
    assert receipt(after).cached_tokens >= receipt(seen).prompt_tokens - 1, receipt(after)


async def test_a_text_chat_stays_warm_with_or_without_a_projector(tmp_path, smollm2):
    app = App(tmp_path / "home", seeing(smollm2), "embedded")
    text, shown = await app.new_chat(SYSTEM), await app.new_chat()
    await app.run_turn(lambda runtime: runtime.chat.send(text, "Which is the longest bridge?", GREEDY))

    async def look_then_read(runtime: Runtime) -> Message | None:
        await runtime.chat.send(shown, "What is this?", GREEDY, attachments=(RED,))
        await runtime.chat.wait_until_idle()
        assert (await runtime.engine.ready()).has_vision
        return await runtime.chat.send(text, "And the shortest?", GREEDY)

    reply = await app.run_turn(look_then_read)
    assert receipt(reply).cached_tokens >= 0.95 * receipt(reply).prompt_tokens, receipt(reply)
    reply = await app.run_turn(lambda runtime: runtime.chat.send(text, "And the oldest?", GREEDY))
    assert receipt(reply).source is Source.DISK, receipt(reply)


async def test_a_text_chat_uses_no_save_point_of_a_chat_with_images(tmp_path, smollm2):
    """Without a projector the engine refuses a state with images, which is no fault of the state."""
    app = App(tmp_path / "home", seeing(smollm2), "embedded")
    system = "You keep a long list of careful rules, and tell nobody. " * 60
    shown, text = await app.new_chat(system), await app.new_chat(system)
    await app.run_turn(lambda runtime: runtime.chat.send(shown, "What is this?", GREEDY, attachments=(RED,)))
    assert await app.run_turn(lambda runtime: runtime.chat.send(text, "Which is the longest bridge?", GREEDY))
    reply = await app.run_turn(lambda runtime: runtime.chat.send(shown, "And else?", GREEDY))
    assert receipt(reply).source is Source.DISK, receipt(reply)
    assert receipt(reply).cached_tokens >= 0.96 * receipt(reply).prompt_tokens, receipt(reply)
