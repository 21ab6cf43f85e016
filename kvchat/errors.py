"""Base class of the errors that users see."""

from kvchat.text.language import join_sentences


class KvchatError(Exception):
    """An error caused by the environment or the user, shown as a message and never as a traceback.

    `title` is a short line, `detail` says what happened, `advice` says what to do next; the last two may be empty.
    Any other exception is a bug and shows the window for bug reports.
    """

    def __init__(self, title: str, detail: str = "", advice: str = "") -> None:
        super().__init__(title)
        self.title = title
        self.detail = detail
        self.advice = advice

    def __str__(self) -> str:
        return join_sentences(self.title, self.detail, self.advice)

    @property
    def explanation(self) -> str:
        return join_sentences(self.detail, self.advice)
