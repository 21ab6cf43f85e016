from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvchat.library.remote.package_index import IndexFile, newest_wheel, pip_settings

PAGE = "https://index.example/simple/thing/"
HASH = "ab" * 32


def json_page(*files: dict[str, object]) -> str:
    return json.dumps({"files": files})


def listed(name: str, **more: object) -> dict[str, object]:
    return {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": HASH}, **more}


def test_the_highest_version_wins_not_the_last_listed() -> None:
    page = json_page(
        listed("thing-0.10.0-py3-none-any.whl", size=5),
        listed("thing-0.9.1-py3-none-any.whl"),
        listed("thing-1.0.tar.gz"),
    )
    url = "https://index.example/files/thing-0.10.0-py3-none-any.whl"
    assert newest_wheel(PAGE, "application/json", page) == IndexFile(url, "thing-0.10.0-py3-none-any.whl", HASH, 5)


def test_yanked_and_unhashed_files_are_passed_over_and_no_name_leads_out_of_the_folder() -> None:
    page = json_page(
        listed("thing-3-py3-none-any.whl", yanked="broken"),
        listed("thing-2-py3-none-any.whl", hashes={}),
        listed("../../x/thing-1-py3-none-any.whl", yanked=False),
    )
    found = newest_wheel(PAGE, "application/json", page)
    assert found is not None
    assert found.filename == "thing-1-py3-none-any.whl"


def test_html_pages_are_read_too() -> None:
    page = f"""<!DOCTYPE html><html><body>
      <a href="../../f/thing-2-py3-none-any.whl#sha256={HASH}" data-yanked="">yanked</a>
      <a href="../../f/thing-1-py3-none-any.whl">no hash</a>
      <a href="../../f/thing-0.5-py3-none-any.whl#sha256={HASH}" data-requires-python="&gt;=3.9">thing</a>
    </body></html>"""
    url = "https://index.example/f/thing-0.5-py3-none-any.whl"
    assert newest_wheel(PAGE, "text/html; charset=utf-8", page) == IndexFile(url, "thing-0.5-py3-none-any.whl", HASH)


@pytest.mark.parametrize(
    ("kind", "page"),
    [("text/plain", "hello"), ("application/json", "{}"), ("application/json", "[1]"), ("application/json", "<html>")],
)
def test_other_pages_are_refused(kind: str, page: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        newest_wheel(PAGE, kind, page)
    assert newest_wheel(PAGE, "application/json", json_page()) is None
    assert newest_wheel(PAGE, "text/html", "<html></html>") is None


def test_the_index_comes_from_pips_own_settings(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    named = tmp_path / "named.conf"
    named.write_text(f"[global]\nindex-url = https://named.example/simple/\ncert = {named}\nproxy = http://gate:1\n")
    told = pip_settings({**home, "PIP_CONFIG_FILE": str(named)})
    assert told == {"index-url": "https://named.example/simple/", "cert": str(named), "proxy": "http://gate:1"}
    environment = {"PIP_INDEX_URL": "https://env.example/simple/", "PIP_CERT": "/nowhere"}
    told = pip_settings({**home, **environment})
    assert told["index-url"] == "https://env.example/simple/"
    assert "cert" not in told
    (tmp_path / "config/pip").mkdir(parents=True)
    (tmp_path / "config/pip/pip.conf").write_text("[global]\nindex-url = https://user.example/simple\n")
    assert pip_settings({**home, "PIP_CONFIG_FILE": str(named)})["index-url"] == "https://named.example/simple/"
    assert pip_settings(home)["index-url"] == "https://user.example/simple"
    assert "index-url" not in pip_settings({**home, "PIP_CONFIG_FILE": os.devnull})
