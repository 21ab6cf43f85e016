"""The entry of the engine page for using the models of another computer: search, pairing and unpairing."""

import asyncio
from collections.abc import Mapping

from PySide6.QtWidgets import QWidget

from kvchat.engine.api.errors import EngineFailed
from kvchat.engine_host.paired_computer import PairedComputer
from kvchat.errors import KvchatError
from kvchat.settings import Settings
from kvchat.sharing_service import find_shared
from kvchat.system.pairing import WrongCode
from kvchat.text.language import N_, _, join_sentences
from kvchat.ui.base.building import button, clear, column, label, line_edit, row
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import FlowLayout, allow_line_breaks, flow

_PAUSE_S = 5.0  # between two searches
_HELP = N_(
    "Use the models of another computer that runs kvchat. That computer also keeps the memory of your chats. "
    "On it, open Settings, Devices and click “Pair a device…”."
)


class OtherComputerEntry(Entry):
    """Entry with fields to pair with another computer or, once paired, with its name. Refresh it with its page."""

    def __init__(self, page: SettingsPage) -> None:
        self._page = page
        self.paired_computer: PairedComputer | None = None  # the paired computer, once loaded
        self.found: Mapping[str, str] = {}  # addresses by name
        self._searching: asyncio.Task[None] | None = None
        self._found_buttons, self.search_label = FlowLayout(), label(_("Searching the network…"), "small", wraps=True)
        self.address_field = line_edit(_("Address"), _("for example gpubox or 192.168.1.5"))
        self.code_field = line_edit(_("Pairing code"), _("six-digit code"))
        self.pair_button = button(_("Pair"), self._pair, name=_("Pair with the computer at this address"))
        for field in (self.address_field, self.code_field):
            field.returnPressed.connect(self._pair)
        self._unpaired, self._paired = QWidget(), QWidget()
        fields = row((self.address_field, 2), (self.code_field, 1), self.pair_button, spacing=8)
        column(self.search_label, self._found_buttons, fields, on=self._unpaired, spacing=6, margins=0)
        self.state_label = label(wraps=True)
        self.use_button = button(_("Use the paired computer"), self._use_computer)
        self.stop_using_button = button(_("Use this computer"), lambda: page.run(page.runtime.use_server(None)))
        self.stop_using_button.setToolTip(_("Chats will use the engine of this computer. The computers stay paired."))
        self.unpair_button = button(_("Unpair…"), self._ask_to_unpair)
        column(flow(self.use_button, self.stop_using_button, self.unpair_button), on=self._paired, margins=0)
        control = QWidget()
        column(self.state_label, self._unpaired, self._paired, on=control, spacing=8, margins=0)
        super().__init__(_("On another computer"), _(_HELP), control, is_wide=True)
        self._show_paired(False)

    @property
    def used_computer(self) -> PairedComputer | None:
        """The paired computer, if the settings select it."""
        url = self._page.runtime.settings.engine_url
        return self.paired_computer if self.paired_computer is not None and self.paired_computer.url == url else None

    def refresh(self, settings: Settings) -> None:
        computer, is_used = self.paired_computer, self.used_computer is not None
        failure = status.failure if is_used and (status := self._page.runtime.engine.status).is_unpaired else None
        needs_pairing = computer is None or failure is not None
        self._unpaired.setVisible(needs_pairing)
        self._show_paired(computer is not None)
        self.set_help(_(_HELP) if needs_pairing else "")
        if computer is None:
            return
        self.refuse("")
        name = allow_line_breaks(computer.name)
        where = _("Paired with {name} at {address}.", name=name, address=computer.url.removeprefix("https://"))
        use = _("Chats use the models of that computer.") if is_used else _("Chats use the engine of this computer.")
        self.state_label.setText(join_sentences(where, use))
        if failure is not None:
            self.state_label.setText(allow_line_breaks(str(EngineFailed(failure))))
            if not self.address_field.text():
                self.address_field.setText(computer.url.removeprefix("https://"))
        self.use_button.setText(_("Use {name}", name=_shortened(computer.name)).replace("&", "&&"))
        self.use_button.setAccessibleName(_("Use {name}", name=computer.name))
        self.unpair_button.setAccessibleName(_("Unpair {name}", name=computer.name))
        self.use_button.setVisible(not is_used)
        self.stop_using_button.setVisible(is_used)

    def _show_paired(self, is_paired: bool) -> None:
        for widget in (self.state_label, self._paired):
            widget.setVisible(is_paired)

    def restore(self, settings: Settings) -> None:
        self.code_field.clear()
        self.refuse("")

    async def load(self) -> None:
        self.paired_computer = await self._page.runtime.engines.paired_computer()
        self.refresh(self._page.runtime.settings)

    def start_searching(self) -> None:
        if self._searching is None:
            self._searching = self._page.panel.run(self._search())

    def stop_searching(self) -> None:
        if self._searching is not None:
            self._searching.cancel()
            self._searching = None

    async def _search(self) -> None:
        while True:
            if self._unpaired.isVisibleTo(self):
                found, own = await find_shared(), self._page.runtime.api_server.sharing.addresses
                self.show_found({name: address for name, address in found.items() if address not in own})
            await asyncio.sleep(_PAUSE_S)

    def show_found(self, found: Mapping[str, str]) -> None:
        text = _("Found on the network:") if found else _("No computer that shares its models was found.")
        self.search_label.setText(text)
        if found == self.found:
            return
        self.found = found
        clear(self._found_buttons)
        for name, address in sorted(found.items()):
            choose = button(_shortened(name).replace("&", "&&"), None, name=_("Pair with {name}", name=name))
            choose.setToolTip(address)
            choose.clicked.connect(lambda _, address=address: self._choose(address))
            self._found_buttons.addWidget(choose)

    def _use_computer(self) -> None:
        if self.paired_computer is not None:
            self._page.run(self._page.runtime.use_server(self.paired_computer.url))

    def _choose(self, address: str) -> None:
        self.address_field.setText(address.removeprefix("https://"))
        self.code_field.setFocus()

    def _pair(self) -> None:
        address, code = self.address_field.text().strip(), "".join(filter(str.isdigit, self.code_field.text()))
        if not address:
            self.refuse(_("Enter the address of the other computer."))
            self.address_field.setFocus()
        elif len(code) != 6:
            self.refuse(_("Enter the six digits that the other computer shows."))
            self.code_field.setFocus()
        elif self.pair_button.isEnabled():
            self.refuse("")
            self.pair_button.setEnabled(False)
            self._page.panel.run(self._pair_with(address, code), self._show_error)

    async def _pair_with(self, address: str, code: str) -> None:
        try:
            computer = await self._page.runtime.engines.pair(address, code)
        finally:
            self.pair_button.setEnabled(True)
        self.address_field.clear()
        self.code_field.clear()
        self.paired_computer = computer
        self.refresh(self._page.runtime.settings)
        self.unpair_button.setFocus()  # the fields are hidden now
        await self._page.runtime.use_server(computer.url)
        self._page.refresh()

    def _show_error(self, error: KvchatError) -> None:
        self.refuse(allow_line_breaks(str(error)))
        field = self.code_field if isinstance(error, WrongCode) else self.address_field
        field.setFocus()  # the disabled button has lost it
        field.selectAll()

    def _ask_to_unpair(self) -> None:
        async def unpair() -> None:
            await self._page.runtime.engines.unpair()
            self.paired_computer = None
            if is_used:
                await self._page.runtime.use_server(None)
            self._page.refresh()

        if (computer := self.paired_computer) is None:
            return
        is_used = self.used_computer is not None
        stays = _(
            "The memory of your chats stays on {name} until you remove this computer there, in Settings, Devices.",
            name=computer.name,
        )
        text = join_sentences(
            _("Chats will use the engine of this computer.") if is_used else "",
            _("To use {name} again, you need a new code.", name=computer.name),
            stays,
        )
        title = _("Unpair {name}?", name=computer.name)
        confirm(self._page.panel, title, text, _("Unpair"), lambda: self._page.run(unpair()))


def _shortened(name: str, max_letters: int = 32) -> str:
    return name if len(name) <= max_letters else f"{name[: max_letters - 1].rstrip()}…"
