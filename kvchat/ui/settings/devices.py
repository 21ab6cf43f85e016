"""The devices page of the settings: sharing this computer's models, pairing, and the paired devices."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import segno
from PySide6.QtCore import QRectF, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QHideEvent, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QSizePolicy, QWidget

from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import program_of
from kvchat.runtime import Runtime
from kvchat.sharing_service import SharingService
from kvchat.text.formatting import format_age, format_size
from kvchat.text.language import N_, _, capitalize_first, join_parts
from kvchat.ui.base.building import STRETCH, button, clear, column, label, row
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import Question, confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.controls import CopyButton
from kvchat.ui.widgets.layouts import ElidedLabel, flow

if TYPE_CHECKING:
    from kvchat.gateway.devices.device_list import Device

_TICK_MS = 1000
_QUIET_ZONE = 4  # modules of light border, as ISO 18004 requires
_MODULE = 5  # pixels of a module at 100 % text
_HOW_TO_PAIR = N_(
    "In kvchat on your other computer, open Settings, Engine. Choose this computer or enter its address, "
    "then enter this code."
)
_HOW_TO_SCAN = N_(
    "On a phone or tablet, scan this QR code with the camera. The browser shows a warning about the certificate once; "
    "accept it."
)


class DevicesPage(SettingsPage):
    name, key = N_("Devices"), "devices"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self._sharing = runtime.api_server.sharing
        self._is_changing = False
        self._bytes: Mapping[str, int] | None = None  # chat memory by `Device.program`; None until loaded
        self.add_settings(through="share_devices")
        self._addresses = column(spacing=6)
        self.addresses_entry = self.add_wide(_("Addresses of this computer"), "", self._addresses)
        self.add_settings()
        self._server_entries = self.entries[1:]  # shown while this computer is shared
        self.pair_button = button(_("Pair a device…"), self._open_pairing)
        self._rows = column(spacing=10)
        self.devices_entry = self.add_wide(_("Paired devices"), "", self._rows, flow(self.pair_button))
        panel.subscribe_while_open(self._sharing.subscribe, self._show_sharing)

    def change(self, name: str, value: Any) -> None:
        async def change() -> None:
            self._is_changing = True
            try:
                await self.runtime.apply_settings(replace(self.runtime.settings, **{name: value}))
            finally:
                self._is_changing = False
                self.refresh()

        self.run(change())

    def refresh(self) -> None:
        super().refresh()
        for entry in self._server_entries:
            entry.setVisible(self.runtime.settings.share_devices)
        self._show_sharing()
        if self.isVisible():
            self.run(self._load())

    async def _load(self) -> None:
        """Load the devices and the size of their memory."""
        await self._sharing.load()
        await asyncio.to_thread(lambda: self.runtime.api_server.totals)
        usage = await self.runtime.save_points.usage()
        self._bytes = {program_of(device.conversation_id): device.bytes for device in usage.devices}
        self._show_devices()

    def _show_sharing(self) -> None:
        clear(self._addresses)
        addresses = self._sharing.addresses
        for address in addresses:
            copy = CopyButton(_("the address {address}", address=address), partial(str, address))
            self._addresses.addLayout(row((label(address, selectable=True), 1), copy, spacing=8))
        if self._is_changing:
            help = _("Starting…")
        elif self._sharing.port is None:
            help = _("Sharing could not start. Try another port.")
        elif not addresses:
            help = _("This computer is not connected to a home network.")
        else:
            help = _("Your devices must be on the same network.")
        self.addresses_entry.set_help(help)
        self.pair_button.setVisible(self._sharing.port is not None)
        self._show_devices()

    def _show_devices(self) -> None:
        devices = sorted(self._sharing.devices, key=lambda device: -device.paired_at)
        clear(self._rows)
        for device in devices:
            self._rows.addLayout(self._device_row(device))
        help = "" if devices else _("No device is paired.")
        if not self.runtime.settings.share_devices:
            help = _("These devices cannot use the models of this computer while sharing is off.") if devices else help
        self.devices_entry.set_help(help)

    def _device_row(self, device: Device) -> QHBoxLayout:
        name = ElidedLabel()
        name.set_text(device.name)
        text = _("Remove {name}", name=device.name)
        remove = button(_("Remove…"), lambda: self._ask_to_remove(device), "link", name=text)
        details = label(self._describe(device), "small", wraps=True)
        return row((column(name, details, spacing=2), 1), remove, spacing=10)

    def _describe(self, device: Device) -> str:
        total = self.runtime.api_server.totals.by_program().get(device.program)
        used_at = max(device.last_used_at, total.last_at if total else 0.0)
        use = _("never used")
        if used_at:
            use = _("used {when}", when=format_age(datetime.fromtimestamp(used_at, UTC), datetime.now(UTC)))
        memory = ""
        if self._bytes is not None:
            size = self._bytes.get(device.program, 0)
            memory = _("{size} of chat memory", size=format_size(size)) if size else _("no chat memory")
        return capitalize_first(join_parts(filter(None, (use, memory))))

    def _ask_to_remove(self, device: Device) -> None:
        async def remove() -> None:
            try:
                await self.runtime.api_server.remove_device(device.id)
            finally:
                self.refresh()

        text = _(
            "The device immediately loses access to the models of this computer, "
            "and the memory of its chats is deleted here."
        )
        title, action = _("Remove “{name}”?", name=device.name), _("Remove")
        confirm(self.panel, title, text, action, lambda: self.run(remove()))

    def _open_pairing(self) -> None:
        try:
            dialog = PairingDialog(self.panel, self.look, self._sharing)
        except KvchatError as error:
            self.panel.show_error(error)
        else:
            dialog.accepted.connect(
                lambda: self.panel.notices.notify(_("“{name}” is now paired.", name=dialog.paired_name))
            )
            dialog.open()


class PairingDialog(Question):
    """Dialog that shows a pairing code until a device has used it. Closing the dialog hides the code."""

    def __init__(self, parent: QWidget, look: Look, sharing: SharingService) -> None:
        """Raises NotShared and PairingLocked."""
        self._sharing, self.code, self.paired_name = sharing, sharing.show_code(), ""
        self._known = {(device.id, device.paired_at) for device in sharing.devices}
        self.digits, self.validity = label(kind="digits", selectable=True), label(kind="muted", wraps=True)
        addresses = label("\n".join(sharing.addresses), selectable=True)
        addresses.setAccessibleName(_("Addresses of this computer"))
        self.new_code_button, self.close_button = QPushButton(_("New code")), QPushButton(_("Close"))
        self.qr_code = QrCode(look)
        code = column(self.digits, self.validity, addresses, STRETCH, spacing=8)
        self.code_row = row((code, 1), self.qr_code, spacing=20)
        title, text = label(_("Pair a device"), "title", wraps=True), label(_(_HOW_TO_PAIR), "muted", wraps=True)
        parts = title, text, label(_(_HOW_TO_SCAN), "muted", wraps=True), 6, self.code_row
        super().__init__(parent, _("Pair a device"), parts, self.new_code_button, self.close_button)
        self._timer = QTimer(self, interval=_TICK_MS)
        self._timer.timeout.connect(self._tick)
        self.new_code_button.clicked.connect(self._show_new_code)
        self.close_button.clicked.connect(self.reject)
        self.finished.connect(self._hide_code)
        self._show_code()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._sharing.listeners.append(self._check_devices)
        self._check_devices()
        self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if self._check_devices in self._sharing.listeners:
            self._sharing.listeners.remove(self._check_devices)
        self._timer.stop()

    @property
    def is_valid(self) -> bool:
        return self.code == self._sharing.code

    def _show_code(self) -> None:
        self.digits.setText(f"{self.code[:3]} {self.code[3:]}")
        self.digits.setAccessibleName(_("Code: {code}", code=" ".join(self.code)))
        self.qr_code.show_text(self._sharing.link)
        self._tick()

    def _tick(self) -> None:
        minutes, seconds = divmod(round(self._sharing.code_seconds_left), 60)
        text = _("Valid for another {time}", time=f"{minutes}:{seconds:02}")
        self.validity.setText(text if self.is_valid else _("This code is not valid anymore."))
        self.digits.setEnabled(self.is_valid)
        self.qr_code.setVisible(self.is_valid and self.qr_code.has_code)
        self.new_code_button.setVisible(not self.is_valid)

    def _show_new_code(self) -> None:
        try:
            self.code = self._sharing.show_code()
        except KvchatError as error:
            self.validity.setText(str(error))
        else:
            self._show_code()

    def _check_devices(self) -> None:
        new = [device for device in self._sharing.devices if (device.id, device.paired_at) not in self._known]
        if new:
            self.paired_name = new[0].name
            self.accept()
        elif self._sharing.port is None:
            self.reject()

    def _hide_code(self) -> None:
        if self.is_valid:  # else another code has replaced it
            self._sharing.hide_code()


class QrCode(QWidget):
    """A QR code of a link, dark on light in every theme, because not every camera reads an inverted one."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._rows: tuple[bytearray, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(_("QR code"))
        look.changed.connect(self.updateGeometry)

    @property
    def has_code(self) -> bool:
        return bool(self._rows)

    def show_text(self, text: str) -> None:
        """Show the code of a text, or nothing if it is empty."""
        self._rows = segno.make(text, micro=False).matrix if text else ()
        self.setAccessibleDescription(text)
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        side = self._look.px(_MODULE) * (len(self._rows) + 2 * _QUIET_ZONE)
        return QSize(side, side)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        module = self.width() / (len(self._rows) + 2 * _QUIET_ZONE)
        with QPainter(self) as painter:
            painter.fillRect(self.rect(), QColor(Qt.GlobalColor.white))
            for y, row in enumerate(self._rows):
                for x, is_dark in enumerate(row):
                    if is_dark:
                        place = QRectF((x + _QUIET_ZONE) * module, (y + _QUIET_ZONE) * module, module, module)
                        painter.fillRect(place, QColor(Qt.GlobalColor.black))
