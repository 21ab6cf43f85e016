"""Settings, Devices: a real kvchat that shares its model, and a device that pairs with it over the network."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog
from pytestqt.qtbot import QtBot

from kvchat import sharing_service
from kvchat.engine_host.paired_computer import PairedComputer, pair
from kvchat.errors import KvchatError
from kvchat.settings import Settings
from kvchat.system.certificate import pinned_context
from kvchat.system.pairing import MAX_WRONG_CODES
from kvchat.ui.base.theme import Look
from kvchat.ui.settings.devices import DevicesPage, PairingDialog
from kvchat.ui.widgets.layouts import ElidedLabel
from tests.gateway.servers import WORDS, chat_body
from tests.ui.windows import Open, begun, button, question

LEFT = Qt.MouseButton.LeftButton
LONG_NAME = "Ada’s Laptop in the Study on the Second Floor, beside the Window 阿达的笔记本电脑 " * 2


@pytest.fixture
async def shown(
    tmp_path: Path, real_settings: Settings, look: Look, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Open]:
    monkeypatch.setattr(sharing_service, "_home_addresses", lambda: ["127.0.0.1"])
    async with begun(tmp_path / "home", real_settings, look) as shown:
        server = shown.runtime.api_server
        await shown.until(lambda: server.sharing._devices is not None and not server._change_lock.locked())
        yield shown
        for window in shown.window.findChildren(QDialog):
            window.close()


def page_of(shown: Open) -> DevicesPage:
    return shown.window.side_windows.open_settings(DevicesPage.name).page(DevicesPage)


def dialog_on(page: DevicesPage, qtbot: QtBot) -> PairingDialog:
    qtbot.mouseClick(page.pair_button, LEFT)
    return next(dialog for dialog in page.panel.findChildren(PairingDialog) if dialog.isVisible())


def names(page: DevicesPage) -> list[str]:
    return [name.full_text for name in page.devices_entry.findChildren(ElidedLabel) if name.isVisible()]


async def paired(
    shown: Open, page: DevicesPage, qtbot: QtBot, name: str, monkeypatch: pytest.MonkeyPatch
) -> PairedComputer:
    monkeypatch.setattr("kvchat.engine_host.paired_computer.socket.gethostname", lambda: name)
    dialog = dialog_on(page, qtbot)
    box = await pair(page._sharing.addresses[0], dialog.digits.text())
    await shown.until(lambda: not page.panel.findChildren(PairingDialog))
    return box


async def ask(box: PairedComputer, text: str = WORDS) -> int:
    headers = {"authorization": f"Bearer {box.key}", "x-kvchat-chat": "c1"}
    tls = pinned_context(box.certificate)
    async with httpx2.AsyncClient(verify=tls, base_url=box.url, timeout=60, trust_env=False) as client:
        return (await client.post("/v1/chat/completions", json=chat_body(text), headers=headers)).status_code


async def test_a_device_is_paired_used_named_everywhere_and_removed(
    shown: Open, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, runtime = page_of(shown), shown.runtime
    assert [entry.title.text() for entry in page.entries if entry.isVisible()] == [
        "Share with your other devices",
        "Paired devices",
    ]
    assert page.devices_entry.help.text() == "No device is paired."
    page.change("share_devices", True)
    await shown.until(page.pair_button.isVisible)
    address = page._sharing.addresses[0]
    assert button(page, f"Copy the address {address}").isVisible()

    box = await paired(shown, page, qtbot, LONG_NAME, monkeypatch)
    assert page._sharing.code == "", "a code pairs one device"
    name = LONG_NAME[:100].strip()
    (notice,) = page.panel.notices.visible_notices
    assert notice.texts[0] == f"“{name}” is now paired."
    await shown.until(lambda: names(page) == [name])

    assert await ask(box) == 200
    await runtime.api_server.wait_until_idle()
    programs, storage = shown.window.side_windows.open_programs(), shown.window.side_windows.open_storage()
    await shown.until(lambda: [row.title for row in programs.list.rows] == [name])
    assert not programs.server_off_page.isVisible()
    await shown.until(lambda: [row.title for row in storage.list.usage.rows] == [f"{name} (device)"])
    page.refresh()
    (device,) = page._sharing.devices
    await shown.until(lambda: "of chat memory" in page._describe(device))
    assert page._describe(device).startswith("Used ")

    reader, writer = await asyncio.open_connection(
        "127.0.0.1", runtime.settings.share_port, ssl=pinned_context(box.certificate)
    )
    lines = "POST /v1/chat/completions HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {box.key}"
    body = json.dumps(chat_body(WORDS)).encode()
    writer.write("\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode() + body[:20])
    await shown.until(lambda: runtime.api_server.gateway._body_bytes)  # the request was admitted
    page.panel.bring_forward()
    qtbot.mouseClick(button(page, f"Remove {name}"), LEFT)
    question(page.panel).confirm_button.click()
    await shown.until(lambda: names(page) == [])
    assert await ask(box) == 401
    writer.write(body[20:])
    assert b"401" in await reader.readline(), "also a request that it had begun to send"
    writer.close()
    await shown.until(lambda: not runtime.save_points.store.inventory.usage().conversations)
    assert not runtime.api_server.totals.by_program()


async def test_a_code_is_hidden_when_the_dialog_closes_and_replaced_when_it_has_expired(
    shown: Open, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = page_of(shown)
    page.change("share_devices", True)
    await shown.until(page.pair_button.isVisible)
    dialog = dialog_on(page, qtbot)
    assert dialog.digits.text() == f"{dialog.code[:3]} {dialog.code[3:]}"
    assert dialog.validity.text().startswith("Valid for another ")
    assert dialog._timer.isActive()
    assert dialog.qr_code.isVisible()
    assert dialog.qr_code.accessibleDescription() == page._sharing.link
    qtbot.mouseClick(dialog.close_button, LEFT)
    assert page._sharing.code == ""
    assert not page._sharing.listeners[1:], "only the page listens"

    dialog = dialog_on(page, qtbot)
    first, wrong = dialog.code, f"{(int(dialog.code) + 1) % 1_000_000:06d}"
    assert page._sharing._codes is not None
    page._sharing._codes._expires_at = 0.0
    dialog._tick()
    assert dialog.validity.text() == "This code is not valid anymore."
    assert not dialog.qr_code.isVisible()
    qtbot.mouseClick(dialog.new_code_button, LEFT)
    assert dialog.code == page._sharing.code != first
    assert dialog.qr_code.accessibleDescription() == page._sharing.link
    assert dialog.qr_code.isVisible()
    for _ in range(MAX_WRONG_CODES + 1):
        with pytest.raises(KvchatError):
            await pair(page._sharing.addresses[0], wrong)
    dialog._tick()
    qtbot.mouseClick(dialog.new_code_button, LEFT)
    assert dialog.validity.text().startswith("Too many wrong codes.")
    dialog.reject()
    qtbot.mouseClick(page.pair_button, LEFT)
    (notice,) = page.panel.notices.visible_notices
    assert notice.texts[0] == "Too many wrong codes"


async def test_a_port_that_is_taken_is_reported_and_the_dialog_ends_with_sharing(
    shown: Open, real_settings: Settings, qtbot: QtBot
) -> None:
    page = page_of(shown)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        page.change("share_port", taken.getsockname()[1])
        page.change("share_devices", True)
        await shown.until(lambda: page.addresses_entry.help.text() == "Sharing could not start. Try another port.")
        assert not page.pair_button.isVisible()
        page.change("share_port", real_settings.share_port)
        await shown.until(page.pair_button.isVisible)
    dialog_on(page, qtbot)
    page.change("share_devices", False)
    await shown.until(lambda: not page.panel.findChildren(PairingDialog))
    assert not page.addresses_entry.isVisible()
