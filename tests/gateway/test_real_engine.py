"""The gateway with the real llama-server: the ids are those it uses, and every answer equals its own."""

import base64
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import BATCH_SIZE, LaunchPlan
from kvchat.engine_host.engines import server_key
from kvchat.gateway import forwarder
from kvchat.gateway.dialects.request import EMBEDDING_PATHS, GENERATING_PATHS, parse_request
from kvchat.gateway.pending_request import prompt_of, shared_tokens
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from kvchat.text.reasons import Reason, ReasonCode
from tests.engine.waiting import until
from tests.gateway.corpus import GOING_ON, REQUESTS, SYSTEM
from tests.gateway.servers import RunningGateway, chat_body, events, receipt_in, running_gateway
from tests.models import seeing
from tests.pictures import png
from tests.users_server import KEY, UsersServer

pytestmark = pytest.mark.engine

LIMITS = {"/v1/responses": "max_output_tokens"}
VARIABLE = {"id", "created", "created_at", "completed_at", "timings", "item_id"}
CACHE_COUNTS = {"cache_read_input_tokens", "input_tokens", "cached_tokens"}
CORRECTED = {"model"}  # the engine tells its path


def greedy(path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return body | {LIMITS.get(path, "max_tokens"): 6, "temperature": 0, "top_k": 1} | more


@pytest.fixture
def many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "MIN_STEPPED", 1)
    monkeypatch.setattr(forwarder, "TARGET_STEP_MS", 0.0)


def users_server(folder: Path, settings: Settings, *arguments: str) -> UsersServer:
    (folder / "slots").mkdir()
    plan = LaunchPlan(
        Path(settings.model_path), 8192, folder / "slots", slots=settings.slots or 1, extra_arguments=arguments
    )
    return UsersServer(Path(settings.engine_path), plan)


@pytest.mark.usefixtures("many_steps")
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen35"])
async def test_ids_and_answers_are_the_engines_own(
    tmp_path: Path, real: Callable[..., Settings], architecture: str
) -> None:
    """All ids that kvchat processed in steps are in the engine's cache: both tokenize the request alike."""
    chosen = real(architecture, api_any_model=False)
    theirs = users_server(tmp_path, chosen, *chosen.engine_arguments.split())
    wrong: list[str] = []
    try:
        async with (
            running_gateway(tmp_path / "home", chosen) as server,
            httpx2.AsyncClient(timeout=120, trust_env=False) as direct,
        ):
            await until(theirs.listens)
            direct.base_url, direct.headers["authorization"] = theirs.address.url, f"Bearer {KEY}"
            while (await direct.get("/health")).status_code != 200:
                pass
            for name, (where, body) in REQUESTS.items():
                if fault := await ids_fault(server, where, body):
                    wrong.append(f"{name}: {fault}")
            for name, (where, body) in REQUESTS.items():
                wrong += [f"{name}: {fault}" async for fault in faults(server, direct, where, body)]
    finally:
        theirs.close()
    assert not wrong, "\n".join(wrong)


async def faults(server: RunningGateway, direct: httpx2.AsyncClient, where: str, body: dict[str, Any]) -> Any:
    for stream in (False, True):
        request = greedy(where, body, stream=stream)
        ours, theirs = [await client.post(where, json=request) for client in (server.client, direct)]
        if ours.status_code != theirs.status_code:
            yield f"{ours.status_code} {ours.text} instead of {theirs.status_code} {theirs.text}"
            continue
        if (answer := content_of(ours.text, stream)) != (expected := content_of(theirs.text, stream)):
            yield f"stream {stream}: {answer}\n instead of {expected}"
        record = server.last
        if record.miss == Reason(ReasonCode.RENDERS_OTHERWISE):
            yield record.miss
        if stream and receipt_in(ours.text)["prompt"] != record.prompt_tokens:
            yield "the receipt has another count"
        await server.settled()


async def ids_fault(server: RunningGateway, where: str, body: dict[str, Any]) -> str:
    """Describe a fault in the ids of a request's prompt: the engine must find those processed in steps."""
    server.runtime.chat.slots.forget()
    if server.runtime.engine.is_ready():
        await (await server.runtime.engine.ready()).engine.erase_slot()
    await server.client.post(where, json=greedy(where, body))
    record = server.last
    await server.settled()
    found, prompt = record.found_tokens or 0, record.prompt_tokens or 0
    known = found + record.processed_tokens >= prompt - BATCH_SIZE and record.cached_tokens == min(found, prompt - 1)
    if record.miss == Reason(ReasonCode.RENDERS_OTHERWISE) or not known:
        counts = f"{record.found_tokens} found, {record.processed_tokens} processed, {record.cached_tokens} cached"
        return f"of {record.prompt_tokens} tokens: {counts}"
    return ""


def content_of(text: str, stream: bool) -> Any:
    """Return an answer without variable fields."""
    if not stream:
        return bare(json.loads(text))
    lines = [line for line in text.splitlines() if line and not line.startswith(": kvchat")]
    return [bare(json.loads(line[6:])) if line.startswith("data: {") else line for line in lines]


def bare(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = VARIABLE | CACHE_COUNTS | CORRECTED
        return {name: bare(inner) for name, inner in value.items() if name not in left_out}
    return [bare(inner) for inner in value] if isinstance(value, list) else value


async def test_pictures_are_restored_in_any_dialect(tmp_path: Path, real: Callable[..., Settings]) -> None:
    data = base64.b64encode(png()).decode()
    in_chat = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    in_message = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    chosen = real(engine_arguments="")
    chosen = replace(chosen, model_path=str(seeing(Path(chosen.model_path))))
    words, replies = {"type": "text", "text": "What is it?"}, []
    system = {"role": "system", "content": SYSTEM}
    for sources in ("cold", ("disk", "warm")):
        async with running_gateway(tmp_path / "home", chosen) as server:
            user = {"role": "user", "content": [in_chat, words]}
            one = await server.client.post("/v1/chat/completions", json=greedy("", {"messages": [system, user]}))
            assert one.status_code == 200, one.text
            assert server.last.source in sources, server.last
            await server.settled()
            asked = {"system": SYSTEM, "messages": [{"role": "user", "content": [in_message, words]}]}
            other = await server.client.post("/v1/messages", json=greedy("", asked))
            assert server.last.source == "hot"
            assert server.last.cached_tokens == server.last.prompt_tokens - 1
            replies += [one.json()["choices"][0]["message"]["content"], other.json()["content"][0]["text"]]

    assert len(set(replies)) == 1


def usage_in(text: str, stream: bool) -> tuple[int, int]:
    """Return an answer's counts of reused tokens and of prompt tokens."""
    reused = processed = 0
    for event in events(text) if stream else [json.loads(text)]:
        inner = event.get("message") or event.get("response") or event
        assert "/" not in inner.get("model", ""), "that is a path"
        usage = inner.get("usage") or {}
        if "cache_read_input_tokens" in usage:
            reused, processed = usage["cache_read_input_tokens"], usage["input_tokens"]
        elif details := usage.get("prompt_tokens_details") or usage.get("input_tokens_details"):
            reused = details["cached_tokens"]
            processed = usage.get("prompt_tokens", usage.get("input_tokens")) - reused
        if timings := inner.get("timings"):
            assert (timings["cache_n"], timings["prompt_n"]) == (reused, processed)
    return reused, reused + processed


@pytest.mark.usefixtures("many_steps")
async def test_usage_agrees_with_the_receipt(tmp_path: Path, real: Callable[..., Settings]) -> None:
    """Tokens that kvchat processed in steps do not count as cached, in any dialect, streamed or not."""
    async with running_gateway(tmp_path / "home", real()) as server:
        for n, (where, stream) in enumerate((where, stream) for where in GENERATING_PATHS for stream in (False, True)):
            words = f"{n} {SYSTEM}"
            body: dict[str, Any] = {"messages": [{"role": "user", "content": words}]}
            body = {"/v1/completions": {"prompt": words}}.get(where, {"input": words} if "resp" in where else body)
            asked = greedy(where, body, stream=stream) | ({"stream_options": {"include_usage": True}} if stream else {})
            cold, again = [await server.client.post(where, json=asked) for _ in range(2)]
            for answer, warm in ((cold, False), (again, True)):
                reused, prompt = usage_in(answer.text, stream)
                headers = {name: int(answer.headers.get(f"x-kvchat-{name}", 0)) for name in ("cached", "prompt")}
                told = receipt_in(answer.text) if stream else headers
                assert (told["cached"], told["prompt"]) == (reused, prompt), (where, stream)
                assert (reused > prompt // 2) is warm, (where, stream, reused, prompt)
            await server.settled()
        props = (await server.client.get("/props")).json()
        assert (props["model_path"], props["model_alias"]) == ("tiny-llama-1.gguf", "tiny-llama-1.gguf")


REFUSED: tuple[dict[str, Any], ...] = (
    {"grammar": 'root ::= unspeakable heron (\nother ::= "unspeakable\n\nthird ::= "unspeakable"'},
    {"messages": [{"role": "user", "content": [{"type": "unspeakable"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "unspeakable"}}]}]},
    {"response_format": {"type": "unspeakable"}},
    {"json_schema": {"type": "unspeakable"}},
    {"max_tokens": "unspeakable"},
)


@pytest.mark.parametrize("kind", ["real_llama_server", "embedded_engine"])
async def test_no_log_quotes_a_refused_request(
    tmp_path: Path, tiny_model: Callable[[str], Path], request: pytest.FixtureRequest, kind: str
) -> None:
    engine: EngineLocation = request.getfixturevalue(kind)
    model = str(tiny_model("llama"))
    path = str(engine.path or "embedded")
    chosen = Settings(model_path=model, engine_path=path, context_size=2048, free_floor_bytes=0)
    async with running_gateway(tmp_path / "home", chosen) as server:
        for body in REFUSED:
            asked = {"messages": chat_body("Hello")["messages"]} | body
            answer = await server.client.post("/v1/chat/completions", json=asked)
            assert 400 <= answer.status_code <= 500, answer.text
        log = "\n".join(server.runtime.engine.log_lines)
    assert "exception" in log
    assert "unspeakable" not in log
    for file in (tmp_path / "home" / "state").rglob("*"):
        assert not file.is_file() or b"unspeakable" not in file.read_bytes(), file


async def test_next_request_extends_the_settled_tokens(tmp_path: Path, real: Callable[..., Settings]) -> None:
    """After texts, reasoning and calls, in each dialect."""
    async with running_gateway(tmp_path / "home", real()) as server:
        await server.chat("Hello")
        engine = await server.runtime.engine.ready()
        for where, body, reply, following in GOING_ON:
            dialect = GENERATING_PATHS[where]
            asked, then = [parse_request(dialect, json.dumps(sent).encode()) for sent in (body, following)]
            prompt, after = [(await prompt_of(engine, request)).ids for request in (asked, then)]
            boundary = await shared_tokens(engine, partial(asked.next_request, reply))
            assert len(prompt) < len(boundary) < len(after), where
            assert after[: len(boundary)] == boundary, where


INPUTS = {"input": ["A river.", "A garden by it.", "Two rivers and a garden."], "model": "any"}
RANKED = {"query": "rivers", "documents": ["A garden by it.", "Two rivers and a garden."]}
VECTORS = ("--embeddings", "--pooling", "mean")


@pytest.mark.parametrize(
    ("arguments", "has", "own"), [((), "", True), (VECTORS, "embeddings", True), (("--reranking",), "rank", False)]
)
async def test_embeddings_and_reranking_are_the_engines_own(
    tmp_path: Path, real: Callable[..., Settings], arguments: tuple[str, ...], has: str, own: bool
) -> None:
    """Byte for byte, or the same refusal; and no chat relies on the slots they overwrote."""
    chosen = real(slots=2, engine_arguments=" ".join(arguments))
    with contextlib.ExitStack() as ends:
        if not own:
            theirs = users_server(tmp_path, chosen, *arguments)
            ends.callback(theirs.close)
            chosen = replace(chosen, engine_url=theirs.address.url)
            server_key(resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")})).save(KEY)
        async with running_gateway(tmp_path / "home", chosen) as server:
            first = (await server.chat(SYSTEM)).json()["choices"][0]["message"]["content"]
            await server.settled()
            engine = (await server.runtime.engine.ready()).engine
            headers, asked = {"authorization": f"Bearer {engine.key}"}, {}
            async with httpx2.AsyncClient(base_url=engine.base_url, headers=headers, trust_env=False) as direct:
                for where in EMBEDDING_PATHS:
                    if has == "rank" and has not in where:
                        continue  # it answers with whatever is in its memory
                    body = RANKED if "rank" in where else INPUTS
                    answers = [await client.post(where, json=body) for client in (server.client, direct)]
                    assert [answer.status_code for answer in answers] == [200 if has and has in where else 501] * 2
                    assert bare(answers[0].json()) == bare(answers[1].json())
                    assert [n for n in answers[0].headers if n.startswith("x-kvchat")] == ["x-kvchat-model"]
                    asked[where] = answers[0].content
            assert server.last.as_json()["source"] == ""
            server.runtime.chat.slots.forget()  # overwritten by embeddings
            before = [await server.chat(words, first, "And then?") for words in (SYSTEM, SYSTEM[::-1])]
            await server.settled()
            for where, body in asked.items():
                again = await server.client.post(where, json=RANKED if "rank" in where else INPUTS)
                assert again.content == body
            for words, reply in zip((SYSTEM, SYSTEM[::-1]), before, strict=True):
                after = await server.chat(words, first, "And then?")
                assert server.last.cached_tokens == min(
                    server.last.found_tokens or 0, (server.last.prompt_tokens or 0) - 1
                ), server.last
                assert content_of(after.text, False) == content_of(reply.text, False)
                await server.settled()


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen35"])
async def test_messages_use_the_slot_chosen_for_them(
    tmp_path: Path, real: Callable[..., Settings], architecture: str
) -> None:
    """The engine ignores `id_slot` in that dialect and takes the slot with the longest prefix."""
    async with running_gateway(tmp_path / "home", real(architecture, slots=3)) as server:
        chats: dict[str, list[dict[str, Any]]] = {f"How is {place}?": [] for place in ("Ulm", "Bern", "Graz")}
        used = set()
        for turn in range(3):
            for words, said in chats.items():
                said.append({"role": "user", "content": f"{words} And in {turn} days?"})
                body = greedy("/v1/messages", {"system": SYSTEM, "messages": said}, id_slot=1)
                answer = await server.client.post("/v1/messages", json=body)
                said.append({"role": "assistant", "content": answer.json()["content"]})
                engine = (await server.runtime.engine.ready()).engine
                slots = json.loads(await engine.get("/slots"))
                last = max(slots, key=lambda slot: slot.get("id_task", -1))
                assert last["id"] == server.last.slot, [turn, words]
                used.add(last["id"])
                assert server.last.miss != Reason(ReasonCode.RENDERS_OTHERWISE)
                if turn:
                    assert (server.last.cached_tokens or 0) >= (server.last.prompt_tokens or 0) - 40, server.last
                await server.settled()
        assert used == {0, 1, 2}
