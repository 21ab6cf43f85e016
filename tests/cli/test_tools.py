"""`kvchat tools` in processes of its own."""

import json
import sys
import zipfile
from pathlib import Path

from tests.e2e.home import Home
from tests.tools.mcp.conftest import FAULTY_SERVER
from tests.tools.mcp.test_bundles import write_bundle


def test_server_is_added_tested_and_removed(home: Home) -> None:
    assert "No MCP servers" in home.run("tools").stdout
    done = home.run(
        "tools", "add", "demo", "--set", "API_KEY=hush", "--", sys.executable, "-u", str(FAULTY_SERVER), code=0
    )
    assert "API_KEY=${keyring:API_KEY}" in done.stdout
    again = home.run("tools", "add", "demo", "--", "other")
    assert (again.returncode, again.stdout) == (1, "")
    assert "already exists" in again.stderr
    tested = json.loads(home.run("tools", "test", "demo", "--json").stdout)
    assert tested["state"] == "running"
    assert {
        "name": "echo",
        "description": "Does echo",
        "read_only": False,
        "enabled": True,
        "approved": True,
    } in tested["tools"]
    assert "demo  not started" in home.run("tools", "list").stdout
    assert home.run("tools", "remove", "demo").returncode == 0
    assert json.loads(home.run("tools", "--json").stdout)["servers"] == []


def test_imported_server_needs_approval(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text(
        json.dumps({"servers": {"demo": {"command": sys.executable, "args": [str(FAULTY_SERVER), "exit"]}}})
    )
    assert "1 MCP server was added." in home.run("tools", "import", str(file)).stdout
    refused = home.run("tools", "test", "demo", code=1)
    assert "not approved" in refused.stderr
    assert str(FAULTY_SERVER) in home.run("tools", "approve", "demo").stdout
    failed = home.run("tools", "test", "demo", code=1)
    assert failed.stderr.startswith(f"$ {sys.executable}")
    assert failed.stderr.count("missing API key") == 2, "in the log and in the error"
    assert "Settings" not in failed.stderr
    assert "Traceback" not in failed.stderr
    assert home.run("tools", "import", str(file)).returncode == 1, "it exists"
    file.write_text("{")
    assert "Paste JSON" in home.run("tools", "import", str(file)).stderr


def test_bundle_is_installed(home: Home, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "demo.mcpb")
    assert zipfile.is_zipfile(bundle)
    assert "“Key” is required" in home.run("tools", "add", "demo", str(bundle)).stderr
    assert home.run("tools", "add", "demo", str(bundle), "--set", "key=hush").returncode == 0
    assert "tools" in home.run("tools", "test", "demo").stdout


def test_broken_file_is_explained(home: Home) -> None:
    file = json.loads(home.run("tools", "--json").stdout)["file"]
    Path(file).write_text("{")
    done = home.run("tools", code=1)
    assert "Line 1, column 2" in done.stderr
