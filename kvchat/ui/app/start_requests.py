"""Requests to open a kvchat:// link, chat, model, MCP bundle or document, and the small window for a quick question.

A link may come from anywhere, even a web page. It can only open a page or fill in a field: it never sends, downloads or
deletes anything.

    kvchat://chat/ID            that chat
    kvchat://new?text=WORDS     an empty page with these words, ready to send
    kvchat://model/OWNER/NAME   the models window with this as search text
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from PySide6.QtCore import QEvent, QPoint, Qt, QUrl, Signal
from PySide6.QtGui import QCursor, QGuiApplication, QShowEvent

from kvchat.chat.events import Event, MessagesChanged, QuestionNotStored, ReplyDelta, SettingsChanged
from kvchat.chat.options import NewChat
from kvchat.chat.record.messages import Attachment
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.system.owner import StartRequest
from kvchat.system.session_bus import SessionBus
from kvchat.text.language import _
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.building import button, column, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.chat.composer import Composer
from kvchat.ui.commands import install_shortcuts
from kvchat.ui.controllers.attachments import AttachmentLoader
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.views import ChatPresenter, Controller
from kvchat.ui.desktop.activation import on_wayland, set_activation_token
from kvchat.ui.desktop.global_key import GlobalKey
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.transcript.transcript import Transcript
from kvchat.ui.widgets.layouts import ElidedLabel

_WIDTH, _HEIGHT = 640, 480  # pixels at 100 % text; height after a question


class QuickWindow(Panel):
    """Small window for a quick question. It opens with an empty page unless the last reply is still in progress."""

    chat_wanted = Signal(str)  # chat id

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, chat: ChatController) -> None:
        """`chat` is the main window's controller, which follows each turn because it may show the same chat."""
        super().__init__(runtime, look, runner, _("Quick question"))
        flags = Qt.WindowType.Dialog | Qt.WindowType.FramelessWindowHint | Qt.WindowType.WindowStaysOnTopHint
        self.setWindowFlags(flags)
        self.setObjectName("quick")
        self._main = chat
        self._chat: str | None = None
        self._new: NewChat | None = None  # new chat until its first message is saved
        self._initial_height = 0  # when shown, in pixels
        self.transcript, self.composer = transcript, composer = Transcript(look), Composer(look)
        self._presenter = ChatPresenter(
            runtime, transcript, composer, self.current_chat, lambda: chat.turn_of(self._chat or ""), has_cards=False
        )
        composer.editor.setPlaceholderText(_("Ask something…"))
        composer.sent.connect(lambda text, attachments: self.run(self._send(text, attachments)))
        composer.stop_requested.connect(lambda: self._run_for_chat(runtime.chat.stop))
        self._show_queued = chat.send_controller.connect_queue(composer, self.current_chat, self._prepend)
        self.attachments = AttachmentLoader(runtime, look, composer, self, runner, self.notices, self)
        self.subscribe_while_open(runtime.events.subscribe, self.attachments.handle_event)
        handlers = {"attach": self.attachments.choose_files, "screenshot": self.attachments.take_screenshot}
        install_shortcuts(self, handlers)
        transcript.retry_requested.connect(
            lambda: self._run_for_chat(lambda id: self._run_turn(id, runtime.chat.retry(id)))
        )
        transcript.message_requested.connect(lambda request: chat.handle_request(request, transcript))
        self.model = ElidedLabel("small")
        self.open_in_main_button = button(_("Open in the main window"), self.close, "link")
        self.open_in_main_button.clicked.connect(lambda: self._run_for_chat(self.chat_wanted.emit))
        below = row((self.model, 1), self.open_in_main_button, margins=(6, 0, 6, 0))
        column(self.notices, (transcript, 1), composer, below, on=self, spacing=8, margins=12)

    def toggle(self, activation_token: str = "") -> None:
        """Open the window in front of all others, or close it if it already is."""
        if self.isVisible() and self.isActiveWindow():
            self.close()
            return
        if self._chat is None or not self._runtime.chat.is_answering(self._chat):
            self._chat = self._new = None
            self.transcript.show_conversation([])
        self._fit()
        set_activation_token(activation_token)
        self.bring_forward()
        self.composer.focus()

    def current_chat(self) -> str | None:
        return self._chat

    def attachments_of(self, conversation_id: str | None) -> tuple[Attachment, ...]:
        return self.composer.chips.attachments

    def attach(self, conversation_id: str | None, attachments: tuple[Attachment, ...]) -> None:
        self.composer.set_attachments(attachments)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show()

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest and self.isVisible() and self._chat is None:
            self._fit()
        return super().event(event)

    async def _send(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        """Send a message. If this raises KvchatError, the text is back in the field."""
        if self._chat is None:
            try:
                self._new = await self._runtime.chat.new_chat()
            except KvchatError:
                self._prepend(text, attachments)
                raise
            self._chat = self._new.id
        self._run_turn(self._chat, self._runtime.chat.send(self._chat, text, attachments=attachments, new=self._new))

    def _prepend(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        self.composer.set_draft("\n".join(filter(None, (text, self.composer.draft))))
        self.composer.set_attachments((*attachments, *self.composer.chips.attachments))
        self.composer.focus()

    def _run_turn(self, chat_id: str, task: asyncio.Future[Any]) -> None:
        self._main.run_turn(chat_id, task)
        task.add_done_callback(lambda _: self._show())
        self._fit()
        self._show()

    def _run_for_chat(self, action: Callable[[str], object]) -> None:
        if self._chat is not None:
            action(self._chat)

    def _handle_event(self, event: Event) -> None:
        if self._chat is None or getattr(event, "conversation_id", None) != self._chat:
            return
        match event:
            case QuestionNotStored(text=text, error=error, attachments=attachments):
                self._prepend(text, attachments)
                self.show_error(error)
            case ReplyDelta(message_id=id) if self.transcript.has_message(id):
                self._presenter.show_live()
            case _:
                if isinstance(event, MessagesChanged):
                    self._new = None
                self._show()

    def _show(self) -> None:
        self.model.set_text(self._runtime.model.label or "")
        self.open_in_main_button.setVisible(self._chat is not None)
        self._show_queued()
        self._presenter.show_turn()
        if (chat := self._chat) is not None and self.isVisible():

            async def reload() -> None:
                if await self._presenter.reload(chat):
                    self._presenter.show_turn()

            self.run(reload())

    def _fit(self) -> None:
        """Set a small size before the first question and a larger one after it, in the upper middle of the screen."""
        has_chat, is_shown = self._chat is not None, self.isVisible()
        self.transcript.setVisible(has_chat)
        room = (QGuiApplication.screenAt(QCursor.pos()) or QGuiApplication.primaryScreen()).availableGeometry()
        width = min(self._look.px(_WIDTH), room.width() - 40)
        height = min(self._look.px(_HEIGHT), room.height() - 80) if has_chat else self.sizeHint().height()
        if not is_shown:
            self._initial_height = height
        elif on_wayland():  # usually centred: it grows down and cannot be moved up
            height = min(height, (room.height() + self._initial_height) // 2 - 20)
        self.setFixedSize(width, height)
        if not is_shown:
            self.move(room.topLeft() + QPoint((room.width() - width) // 2, room.height() // 5))
        elif (beyond := self.y() + height + 20 - room.bottom()) > 0:
            self.move(self.x(), max(room.top(), self.y() - beyond))


_MAX_PATH = 32_767  # characters; Windows' limit, the highest of all systems
_MAX_SHOWN = 200  # characters of a link; Qt takes seconds to lay out 100,000


class StartRequestHandler(Controller):
    def __init__(self, runtime: Runtime, window: MainWindow, look: Look, bus: SessionBus) -> None:
        super().__init__(runtime, window, window)
        self._window = window
        self._key, self._has_key = GlobalKey(bus, self), False
        self._key.pressed.connect(lambda token: self.handle(StartRequest(quick=True, token=token)))
        self.quick_window = QuickWindow(runtime, look, window.runner, window.chat)
        self.quick_window.chat_wanted.connect(lambda id: window.show_chat(id))
        self.quick_window.attachments.bundle_given.connect(window.install_bundle)

    def close(self) -> None:
        if not self._closed:
            self._key.close()
            self.quick_window.close()
            self.quick_window.deleteLater()
        super().close()

    def update_global_key(self) -> None:
        is_enabled = self._runtime.settings.quick_key_enabled
        if is_enabled is not self._has_key:
            self._has_key = is_enabled
            self._runner.start(self._key.set_enabled(is_enabled))

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, SettingsChanged):
            self.update_global_key()

    def handle(self, request: StartRequest) -> None:
        if request.quick and self._runtime.model.is_configured:
            self.quick_window.toggle(request.token)
            return
        self._window.raise_window(request.token)
        for target in request.targets:
            self.open(target)

    def open(self, target: str) -> None:
        is_opened = self._open_link(target) if target.startswith("kvchat:") else self._open_file(target)
        if not is_opened:
            self._window.notices.notify(_("The link target was not found"), target[:_MAX_SHOWN])

    def _open_file(self, target: str) -> bool:
        window, path = self._window, QUrl(target).toLocalFile() if target.startswith("file:") else target
        if "\0" in path or len(path) > _MAX_PATH:
            return False
        match Path(path).suffix.lower():
            case ".kvchat":
                window.transfer.import_files([Path(path)])
            case ".mcpb":
                window.install_bundle(Path(path))
            case ".gguf":
                use = window.models.switch if self._runtime.model.is_configured else window.models.use
                self._runner.start(use(Path(path)))
            case _:
                window.new_conversation()
                window.attachments.load_files([Path(path)])
        return True

    def _open_link(self, link: str) -> bool:
        try:
            parts = urlsplit(link)
        except ValueError:  # broken IPv6 address
            return False
        name = unquote(parts.path).strip("/")
        match parts.netloc:
            case "chat" if name in self._window.chat.conversations.chat_ids:
                self._window.show_chat(name)
            case "new":
                self._window.new_conversation()
                self._window.composer.insert_text("\n".join(parse_qs(parts.query).get("text", ())))
            case "model" if name:
                self._window.side_windows.open_models().open_search(name)
            case _:
                return False
        return True
