"""The built-in tools in the runtime: which are offered, which ask, and search in the chats."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import pytest_asyncio

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Role, new_message
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from kvchat.tools.tool import ToolFailed


@pytest_asyncio.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    runtime = await open_runtime(resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")}), Settings())
    yield runtime
    await runtime.close()


async def test_offered_tools_follow_the_settings(runtime: Runtime, tmp_path: Path) -> None:
    source = runtime.built_in_tools
    always = ["date_and_time", "search_chats", "search_documents", "run_python", "fetch_page"]
    assert [tool.name for tool in await source.tools()] == always
    with pytest.raises(ToolFailed, match="not in a folder"):
        await source.call("read_file", {"path": "/etc/passwd"})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "page.html").write_text("<p>short", "utf-8")
    folders = (str(tmp_path / "notes"),)
    runtime.settings = replace(runtime.settings, tool_folders=folders, web_search_url="http://127.0.0.1:9")
    tools = {tool.name: tool for tool in await source.tools()}
    assert {*tools} == {*always, "list_files", "read_file", "web_search"}
    assert {name for name, tool in tools.items() if not tool.read_only} == {"run_python", "fetch_page", "web_search"}
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool.schema)
    assert (await source.call("read_file", {"path": "page.html"})).text == "<p>short", "short HTML stays as it is"
    with pytest.raises(ToolFailed, match="no built-in tool named rm"):
        await source.call("rm", {})


async def test_chats_are_searched_and_results_bounded(runtime: Runtime) -> None:
    search, context = runtime.built_in_tools, runtime.chat.turn_context
    for number in range(30):
        chat = await runtime.chat.create(await runtime.chat.new_chat())
        await runtime.chat.rename(chat.id, f"Birds {number}")
        message = new_message(chat.id, Role.USER, f"The heron waits at bridge {number}. " + "filler " * 1000)
        await context.run(Database.append_message, message)
    found = (await search.call("search_chats", {"query": "heron bridge"})).text.splitlines()
    assert found[0].startswith("- Birds 29: The heron waits at bridge 29.")
    assert len(found) == 20
    assert all(len(line) < 400 for line in found)
    assert (await search.call("search_chats", {"query": "pelican"})).text == "No chat contains all these words."
