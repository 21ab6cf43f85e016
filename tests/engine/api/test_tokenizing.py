import re
from pathlib import Path

import pytest

from kvchat.engine.api.tokenizer import PromptTokenizer
from kvchat.engine.api.wire import ChatMessage
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan
from tests.engine_fixtures import supervised

END, END_ID = "<|end|>", 7
HISTORY = "".join(f"<|say|>{'word ' * 50}{number}{END}" for number in range(20))


class Engine:
    """Tokenizer with one id per character, and one for the end of text."""

    def __init__(self, *, splits: bool = True) -> None:
        self.asked: list[str] = []
        self.splits = splits  # text before the end token is tokenized separately

    async def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        self.asked.append(text)
        first = () if self.splits else (3,) if text.startswith(END) else (4,)
        begin = (1,) if special else ()
        return (
            *begin,
            *first,
            *(END_ID if part == END else 10 + ord(part) for part in re.findall(r"<\|end\|>|.", text)),
        )


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def prompts(engine: Engine) -> PromptTokenizer:
    prompts = PromptTokenizer(engine.tokenize)
    prompts.end_token = END
    return prompts


async def test_history_is_tokenized_once(engine: Engine, prompts: PromptTokenizer) -> None:
    await prompts.tokenize(HISTORY + "<|say|>A question")
    await prompts.tokenize(HISTORY + f"<|say|>A question{END}<|say|>A reply{END}<|say|>A")  # tests if that is so
    before = len(engine.asked)
    for text in (f"A question{END}<|say|>A reply{END}<|say|>7", f"A question{END}<|say|>A reply{END}<|say|>Next?"):
        assert await prompts.tokenize(HISTORY + "<|say|>" + text) == await Engine().tokenize(
            HISTORY + "<|say|>" + text, True
        )
    assert max(map(len, engine.asked[before:])) < 40


async def test_history_of_each_chat_in_turns_is_tokenized_once(engine: Engine, prompts: PromptTokenizer) -> None:
    chats = [f"{number}. {HISTORY}" for number in range(8)]
    for turn in range(4):
        before = len(engine.asked)
        for chat, history in enumerate(chats):
            for more in ("A", "7", question := f"Question {turn}"):
                await prompts.tokenize(f"{history}<|say|>{more}")
            chats[chat] = f"{history}<|say|>{question}{END}<|say|>A reply{END}"
    assert max(map(len, engine.asked[before:])) < 100


async def test_uncuttable_text_is_tokenized_whole() -> None:
    engine = Engine(splits=False)
    prompts = PromptTokenizer(engine.tokenize)
    prompts.end_token = END
    for more in ("one", "two", "three"):
        assert await prompts.tokenize(HISTORY + more) == await Engine(splits=False).tokenize(HISTORY + more, True)
    assert engine.asked[-1] == HISTORY + "three"
    engine = Engine()
    prompts = PromptTokenizer(engine.tokenize)  # it does not know the end token
    for more in ("one", "two", "two"):
        await prompts.tokenize(HISTORY + more)
    assert engine.asked == [HISTORY + "one", HISTORY + "two"], "the same text is not asked for twice"


@pytest.mark.engine
async def test_real_engine_tokenizes_parts_like_the_whole(
    embedded_engine: EngineLocation, smollm2: Path, tmp_path: Path
) -> None:
    texts = ["Hello  ", "  leading\n\n", "```py\nx = 1\n```\n", "日本語 ", "<|im_end|> typed by a user", "The end."]
    async with supervised(embedded_engine, LaunchPlan(smollm2, 2048, tmp_path)) as supervisor:
        engine = await supervisor.ready()
        assert (await engine.facts()).end_token == "<|im_end|>"
        history: list[ChatMessage] = []
        for text in texts:
            history.append(ChatMessage("user", text * 20))
            whole = engine.for_slot(0)
            whole._prompts = PromptTokenizer(whole._tokenize_text)
            assert await engine.prompt_tokens(history) == await whole.prompt_tokens(history)
            history.append(ChatMessage("assistant", f" reply {text}"))
        assert engine._prompts._can_cut
