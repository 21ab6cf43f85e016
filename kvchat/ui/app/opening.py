"""What kvchat is asked to open: kvchat:// links, chats, models, documents, and the small window to ask in.

A link comes from anywhere, a web page too: it never sends, fetches or deletes, it only shows or writes down.

    kvchat://chat/ID            that chat
    kvchat://new?text=WORDS     an empty page, with these words to be sent or not
    kvchat://model/OWNER/NAME   the models window, with this to be searched for or not
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from PySide6.QtCore import QObject, QUrl

from kvchat.chat.events import Event, SettingsChanged
from kvchat.runtime import Runtime
from kvchat.system.owner import StartRequest
from kvchat.system.session_bus import SessionBus
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.quick_window import QuickWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.desktop.global_key import GlobalKey
from kvchat.words.language import _

_MOST_PATH = 32_767  # characters; Windows' limit, and beyond every other system's
_MOST_SHOWN = 200  # characters of a link; Qt takes seconds to lay out 100,000


class Opener(QObject):
    """Fulfils start requests: the first one and those of later starts."""

    def __init__(self, runtime: Runtime, window: MainWindow, look: Look, bus: SessionBus) -> None:
        super().__init__(window)
        self._runtime, self._window = runtime, window
        self._key, self._wants_key = GlobalKey(bus, self), False
        self._key.pressed.connect(lambda token: self.fulfil(StartRequest(quick=True, token=token)))
        self._unsubscribe = runtime.events.subscribe(self._hear)
        self.quick = QuickWindow(runtime, look, window.runner, window.chat, window.messages.handle)
        self.quick.chat_wanted.connect(lambda id: window.show_chat(id))

    def close(self) -> None:
        self._unsubscribe()
        self._key.close()
        self.quick.close()
        self.quick.deleteLater()

    def hold_key(self) -> None:
        wanted = self._runtime.settings.quick_key
        if wanted is not self._wants_key:
            self._wants_key = wanted
            self._window.runner.start(self._key.hold(wanted))

    def _hear(self, event: Event) -> None:
        if isinstance(event, SettingsChanged):
            self.hold_key()

    def fulfil(self, wish: StartRequest) -> None:
        if wish.quick and self._runtime.model.is_there:
            self.quick.come(wish.token)
            return
        self._window.raise_window(wish.token)
        for what in wish.open:
            self.open(what)

    def open(self, what: str) -> None:
        """Open a link, or a file by its whole path."""
        path = QUrl(what).toLocalFile() if what.startswith("file:") else what
        if what.startswith("kvchat:"):
            self._follow(what)
        elif "\0" in path or len(path) > _MOST_PATH:
            self._tell_of_dead_link(what)
        else:
            self._open_file(Path(path))

    def _tell_of_dead_link(self, link: str) -> None:
        self._window.notices.tell(_("This link leads to nothing here"), link[:_MOST_SHOWN])

    def _follow(self, link: str) -> None:
        try:
            parts = urlsplit(link)
        except ValueError:  # half an IPv6 address
            self._tell_of_dead_link(link)
            return
        rest = unquote(parts.path).strip("/")
        match parts.netloc:
            case "chat" if rest in self._window.chat.conversations.ids:
                self._window.show_chat(rest)
            case "new":
                self._window.new_conversation()
                self._window.composer.take("\n".join(parse_qs(parts.query).get("text", ())))
            case "model" if rest:
                self._window.side_windows.open_models().look_for(rest)
            case _:
                self._tell_of_dead_link(link)

    def _open_file(self, path: Path) -> None:
        window = self._window
        match path.suffix.lower():
            case ".kvchat":
                window.transfer.import_files([path])
            case ".gguf":
                use = window.models.switch if self._runtime.model.is_there else window.models.use
                window.runner.start(use(path))
            case _:
                window.new_conversation()
                window.attachments.take([path])
