"""Bundles: manifests, options, hostile zips, and one that runs."""

import json
import os
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvchat.errors import KvchatError
from kvchat.system.paths import Paths
from kvchat.tools.mcp.bundles import bundle_entry, bundle_folder, install_bundle, read_bundle, values_error
from kvchat.tools.mcp.manager import ServerManager
from tests.tools.mcp.conftest import FAULTY_SERVER

_OTHER = "linux" if sys.platform == "win32" else "win32"
MANIFEST: dict[str, Any] = {
    "manifest_version": "0.3",
    "name": "demo",
    "display_name": "Demo\u202e",
    "version": "1.0",
    "description": "Does things",
    "author": {"name": "Somebody"},
    "server": {
        "type": "python",
        "entry_point": "server/main.py",
        "mcp_config": {
            "command": sys.executable,
            "args": ["${__dirname}/server/main.py", "", "${user_config.folders}", "--level=${user_config.level}"],
            "env": {"KEY": "${user_config.key}", "FAST": "${user_config.fast}"},
            "platform_overrides": {sys.platform: {"env": {"KEY": "${user_config.key}", "ON": sys.platform}}},
        },
    },
    "user_config": {
        "folders": {"type": "directory", "title": "Folders", "multiple": True, "default": ["${HOME}${/}Documents"]},
        "level": {"type": "number", "title": "Level", "default": 3},
        "key": {"type": "string", "title": "Key", "sensitive": True, "required": True},
        "fast": {"type": "boolean", "title": "Fast", "default": True},
    },
}


def write_bundle(path: Path, manifest: object = MANIFEST, compression: int = 0, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as zipped:
        zipped.writestr("manifest.json", manifest if isinstance(manifest, bytes) else json.dumps(manifest))
        zipped.writestr("server/main.py", FAULTY_SERVER.read_bytes())
        for name, content in files.items():
            zipped.writestr(name, content)
    return path


async def test_bundle_is_installed_run_updated_and_removed(
    manager: ServerManager, paths: Paths, tmp_path: Path
) -> None:
    bundle = read_bundle(write_bundle(tmp_path / "demo.mcpb", extra=b"old"))
    assert (bundle.title, bundle.author, [option.key for option in bundle.options]) == (
        "Demo",
        "Somebody",
        ["folders", "level", "key", "fast"],
    )
    with pytest.raises(KvchatError, match="“Key” is required"):
        await manager.install(bundle, {})
    folder = bundle_folder(paths.mcp_bundles, "demo")
    assert not folder.exists()
    assert await manager.install(bundle, {"key": "hush", "folders": ["/a", "/b"]}) == "demo"
    source = manager.source("demo")
    assert source.config.arguments == (f"{folder}/server/main.py", "", "/a", "/b", "--level=3")
    assert source.config.environment == {"KEY": "${keyring:key}", "ON": sys.platform}
    assert "hush" not in manager.file.read_text()
    await manager.approve(manager.source("demo").server)
    assert json.loads((await source.call("env", {})).text)["KEY"] == "hush"
    await manager.set_enabled("demo", False)
    await manager.set_tool_enabled("demo", "echo", False)
    await manager.install(read_bundle(write_bundle(tmp_path / "new.mcpb", newer=b"new")), {"key": ""})
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "server", "newer"}
    config = manager.source("demo").config
    assert (config.disabled, config.disabled_tools) == (True, {"echo"})
    assert config.arguments[2] == str(Path.home() / "Documents")
    await manager.set_enabled("demo", True)
    await manager.approve(manager.source("demo").server)
    assert json.loads((await manager.source("demo").call("env", {})).text)["KEY"] == "hush"
    await manager.remove("demo")
    await manager.add("demo", {"command": "mine"})
    with pytest.raises(KvchatError, match="already exists"):
        await manager.install(bundle, {"key": "hush"})
    assert list(paths.mcp_bundles.iterdir()) == []


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (b"{", "Expecting property name"),
        (b" " * 1_000_001, "its manifest is too large"),
        (b"[" * 500_000, "nested too deeply"),
        ({}, "does not define a server"),
        (MANIFEST | {"server": {}}, "does not say how to start"),
        (MANIFEST | {"server": {"mcp_config": {"command": 5}}}, "“command” must be a string"),
        (MANIFEST | {"name": "kvchat"}, "reserved"),
        (MANIFEST | {"name": ""}, "name is empty"),
        (MANIFEST | {"user_config": {"../a": {"type": "string"}}}, "option '../a' is invalid"),
        (MANIFEST | {"user_config": {"a": {"type": "code"}}}, "option 'a' is invalid"),
        (MANIFEST | {"user_config": {f"a{n}": {"type": "string"} for n in range(51)}}, "options are invalid"),
        (MANIFEST | {"user_config": {"a": {"type": "number", "min": 10**400}}}, "option 'a' is invalid"),
        (MANIFEST | {"compatibility": {"platforms": ["plan9", _OTHER]}}, "runs only on"),
        (b"\xff\xfe{", "not valid JSON"),
        ([MANIFEST], "does not define a server"),
    ],
)
def test_invalid_manifests(tmp_path: Path, manifest: object, problem: str) -> None:
    with pytest.raises(KvchatError, match="The MCP bundle could not be read") as failed:
        read_bundle(write_bundle(tmp_path / "a.mcpb", manifest))
    assert problem in str(failed.value)


def test_other_files_are_no_bundles(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no zip")
    with zipfile.ZipFile(tmp_path / "zip", "w") as zipped:
        zipped.writestr("a", "b")
    damaged = bytearray(write_bundle(tmp_path / "damaged", compression=zipfile.ZIP_DEFLATED).read_bytes())
    damaged[60:70] = bytes(10)
    (tmp_path / "damaged").write_bytes(damaged)
    for name, problem in (
        ("text", "it is damaged or not a zip file"),
        ("zip", "it has no manifest.json"),
        ("damaged", "it is damaged or not a zip file"),
        ("missing", "there is no such file"),
        (".", "there is no such file"),
    ):
        with pytest.raises(KvchatError, match=f"could not be read.*{problem}"):
            read_bundle(tmp_path / name)


@pytest.mark.parametrize(
    ("level", "problem"),
    [("many", "is not a number"), ("nan", "is not a number"), (0, "at least 1"), ("10.5", "at most 9.5")],
)
def test_numbers_are_checked(tmp_path: Path, level: str | int, problem: str) -> None:
    options = {"level": {"type": "number", "title": "Level", "min": 1, "max": 9.5, "default": 3}}
    bundle = read_bundle(write_bundle(tmp_path / "a.mcpb", MANIFEST | {"user_config": options}))
    assert values_error(bundle, {"level": "2.5"}) == values_error(bundle, {}) == ""
    with pytest.raises(KvchatError, match=problem):
        install_bundle(bundle, {"level": level}, tmp_path / "mcp", threading.Event())


async def test_a_bundle_shares_no_folder_with_another_server(
    manager: ServerManager, paths: Paths, tmp_path: Path
) -> None:
    folder, other = (bundle_folder(paths.mcp_bundles, name) for name in ("a_b", "A_B"))
    assert str(folder).casefold() != str(other).casefold()
    for name in ("a_b", "A_B"):
        bundle = read_bundle(write_bundle(tmp_path / "b.mcpb", MANIFEST | {"name": name}))
        await manager.install(bundle, {"key": "x"})
    await manager.add("a b", {"command": "mine"})
    for name in ("a b", "A_B"):
        await manager.remove(name)
    assert folder.exists()
    assert not other.exists()


def test_uv_bundles_need_no_command(tmp_path: Path) -> None:
    manifest = {"name": "uv", "server": {"type": "uv", "entry_point": "src/server.py"}}
    entry = bundle_entry(read_bundle(write_bundle(tmp_path / "a.mcpb", manifest)), {}, tmp_path)
    assert entry == {
        "command": "uv",
        "args": ["run", "--directory", str(bundle_folder(tmp_path, "uv")), "src/server.py"],
    }


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [("../evil", b"/etc/passwd", "it contains"), ("zeros", bytes(2_000_000), "too large when unpacked")],
)
def test_unsafe_zips_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, problem: str
) -> None:
    monkeypatch.setattr("kvchat.tools.mcp.bundles.MAX_BUNDLE_BYTES", 1_000_000)
    path, bundles = write_bundle(tmp_path / "a.mcpb", compression=zipfile.ZIP_DEFLATED), tmp_path / "data" / "mcp"
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr(name, content)
    with pytest.raises(KvchatError, match=problem):
        install_bundle(read_bundle(path), {"key": "x"}, bundles, threading.Event())
    assert list(bundles.iterdir()) == []
    assert set(os.listdir(tmp_path)) == {"a.mcpb", "data"}  # noqa: PTH208
